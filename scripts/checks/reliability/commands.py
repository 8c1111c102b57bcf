"""Runs the commands of the long checks."""

import os
import subprocess

from .hosts import REPOSITORY


class NotPossible(Exception):
    """A tool that a check needs is missing."""


def call(*command, shows=True, **variables):
    """Runs a command, shows its output as it comes, and returns (exit code, output)."""
    env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    lines = []
    with subprocess.Popen([str(word) for word in command], cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace") as process:
        for line in process.stdout:
            lines.append(line)
            if shows:
                print(line, end="", flush=True)
    return process.returncode, "".join(lines)
