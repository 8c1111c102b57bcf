"""Runs the command: `python -m gpumemtrace ...`."""

from ._command import main

main()
