"""`python -m gpumemtrace ...` is `gpumemtrace ...`."""

from ._command import main

main()
