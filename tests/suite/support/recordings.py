"""Runs each program once in a run of the checks, for all tests that ask for it.

A run is keyed by its command, the files beside its program, its environment and the library. Every
test gets a copy of all files that the run left. Workers share the store; a lock file per key lets
one of them record while the others wait.
"""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

#: Stands for the test's folder in commands and variables.
FOLDER = "{folder}"
#: Variables that no program reads.
IGNORED = ("PYTEST_", "PWD", "OLDPWD")


@cache
def digest_of_folder(folder):
    """Hash of all Python files below a folder: a program may import any of them."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_shareable(folder, command, environment):
    """Whether a run depends on nothing that the test has put into its folder."""
    texts = [word.partition("=")[2] if "=" in word else word for word in [*command, *environment.values()]]
    return not any(text.startswith(str(folder)) and Path(text).exists() for text in texts)


def run_once(store, folder, name, command, environment, run):
    """Returns the finished process of a run in `folder/name`; `run(command, folder, environment)`
    runs it if it is the first one."""
    runs_in = re.compile(rf"{re.escape(str(folder))}/{re.escape(name)}(?=/|$)")

    def place(text):
        return runs_in.sub(f"{FOLDER}/run", text).replace(str(folder), FOLDER)

    recipe = {
        "command": [place(word) for word in command],
        "environment": {key: place(value) for key, value in sorted(environment.items()) if not key.startswith(IGNORED)},
        "program": digest_of_folder(Path(command[1]).parent),
    }
    key = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:24]
    stored, done = store / key, store / f"{key}.json"
    store.mkdir(exist_ok=True)
    with open(store / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(stored, ignore_errors=True)
            (stored / "run").mkdir(parents=True)
            process = run([word.replace(FOLDER, str(stored)) for word in recipe["command"]], stored / "run",
                          {key: place(value).replace(FOLDER, str(stored)) for key, value in environment.items()})
            done.write_text(json.dumps([process.returncode, process.stdout, process.stderr]))
    shutil.copytree(stored / "run", folder / name, dirs_exist_ok=True, symlinks=True)
    for path in stored.iterdir():
        if path.is_file():
            shutil.copy2(path, folder)
    code, *texts = json.loads(done.read_text())
    texts = [text.replace(str(stored / "run"), str(folder / name)).replace(str(stored), str(folder)) for text in texts]
    return subprocess.CompletedProcess(command, code, *texts)
