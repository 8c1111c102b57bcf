"""Runs each program once in a run of the checks, for all tests that ask for it.

A run is keyed by its name, command and environment, which name the program and the library by their
paths: no test changes a program outside its own folder. Every test gets a copy of all files that
the run left. Workers share the store; a lock file per key lets one of them record while the others
wait.
"""

import fcntl
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

#: Stands for the test's folder in commands and variables.
FOLDER = "{folder}"
#: Variables that no program reads.
IGNORED = ("PYTEST_", "PWD", "OLDPWD")


def is_shareable(folder, command, environment):
    """Whether a run depends on nothing that the test has put into its folder."""
    texts = [word.partition("=")[2] if "=" in word else word for word in [*command, *environment.values()]]
    return not any(text.startswith(str(folder)) and Path(text).exists() for text in texts)


def run_once(store, folder, name, command, environment, run, **options):
    """Returns the finished process of a run in `folder/name`; `run(command, folder, env=...)` with
    the options runs it if it is the first one.

    Runs with other names are other runs, so a test may compare several runs of one program.
    """
    recipe = {
        "name": name,
        "options": options,
        "command": [word.replace(str(folder), FOLDER) for word in command],
        "environment": {key: value.replace(str(folder), FOLDER) for key, value in sorted(environment.items()) if not key.startswith(IGNORED)},
    }
    key = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:24]
    stored, done = store / key, store / f"{key}.json"
    store.mkdir(exist_ok=True)
    with open(store / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(stored, ignore_errors=True)
            (stored / name).mkdir(parents=True)
            process = run([word.replace(str(folder), str(stored)) for word in command], stored / name,
                          env={key: value.replace(str(folder), str(stored)) for key, value in environment.items()}, **options)
            done.write_text(json.dumps([process.returncode, process.stdout, process.stderr]))
    shutil.copytree(stored, folder, dirs_exist_ok=True, symlinks=True)
    code, *texts = json.loads(done.read_text())
    return subprocess.CompletedProcess(command, code, *(text.replace(str(stored), str(folder)) for text in texts))
