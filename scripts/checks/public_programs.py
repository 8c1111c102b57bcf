"""Public programs: checkouts of their repositories, and environments with the PyTorch they used.

For the checks that run them under `gpumemtrace simulate`.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
COMMAND = Path(os.environ.get("GPUMEMTRACE_BUILD", TARGET / "release")) / "gpumemtrace"
ENVIRONMENTS = TARGET / "venvs" / "simulation"
#: Orders of segment addresses of which the range of reserved memory is computed.
ORDERS = 16


class Failed(Exception):
    """A run that cannot be compared; the text says why."""


def git(folder, *arguments):
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True)
    if done.returncode != 0:
        raise Failed(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout


def checkout(repository, clones, folder):
    """The repository's Git folder, and a copy of its text files as of the listed commit."""
    name = repository["name"]
    source = next((path for path in (clones / name.replace("/", "+") / "repo", clones / name) if path.is_dir()), None) if clones else None
    if source is None:
        source = folder / "clone"
        done = subprocess.run(["git", "clone", "--quiet", "--bare", f"https://github.com/{name}", source], capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"git clone: {done.stderr.strip()[-300:]}")
    files = folder / "files"
    listed = git(source, "ls-tree", "-r", "--name-only", "-z", repository["commit"]).decode().split("\0")
    for path in listed:
        if Path(path).suffix in {".py", ".toml", ".md", ".txt", ".json", ".yaml", ".yml"}:
            (files / path).parent.mkdir(parents=True, exist_ok=True)
            try:
                (files / path).write_bytes(git(source, "show", f"{repository['commit']}:{path}"))
            except Failed as error:
                # A copy of a repository may lack large files.
                print(f"{name}: without {path}: {error}", file=sys.stderr)
    return source, files


def make_environment(name, wanted):
    """An environment with PyTorch and the programs' packages, without NVIDIA's libraries."""
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    made = folder / "made"
    if not made.is_file():
        print(f"installing torch {wanted['torch']}", file=sys.stderr, flush=True)
        # PyTorch's dependencies, without NVIDIA's packages.
        others = ["filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing_extensions"]
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        interpreter = f"python{wanted['python']}" if "python" in wanted else sys.executable
        whole = [f"torch=={wanted['torch']}", *wanted.get("no_deps", [])]
        for command in ([interpreter, "-m", "venv", "--clear", folder], [*pip, "--no-deps", *whole], [*pip, *others, *wanted["packages"]]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise Failed(f"{name}: {done.stderr.strip()[-300:]}")
        made.touch()
    return python
