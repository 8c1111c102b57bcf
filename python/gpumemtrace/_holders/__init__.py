"""Finds what holds leaked tensors: a search from the program's names to the leaked blocks.

The search runs inside the user's training. With `gpumemtrace run --holders` it runs from a folder
of its own, and the package need not be installed. So it

- imports nothing else of the package;
- searches only for the blocks of likely leaks, within a time limit;
- calls no code of the program: objects are inspected through their types;
- keeps no object alive afterwards, and raises nothing into the program.
"""

from .library import read_with_command
from .scan import DEFAULT_LIMIT_S, ScanResult, scan_holders

__all__ = ["DEFAULT_LIMIT_S", "ScanResult", "read_with_command", "scan_holders"]
