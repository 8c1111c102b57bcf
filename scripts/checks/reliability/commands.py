"""Runs the commands of the long checks."""

import os
import subprocess

from .hosts import REPOSITORY


class NotPossible(Exception):
    """A tool that a check needs is missing."""


def call(*command, shows=True, **variables):
    """Runs a command, shows its output, and returns (exit code, output)."""
    env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    done = subprocess.run([str(word) for word in command], cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if shows:
        print(done.stdout, end="", flush=True)
    return done.returncode, done.stdout
