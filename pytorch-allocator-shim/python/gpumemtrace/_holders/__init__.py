"""Who holds what leaks: from the tensors that own the leaked blocks to a name that a user knows.

Constraint: this runs inside somebody's training, at its worst moment, and in two ways: as a part of the package, and handed in by
`gpumemtrace run --holders` where the package is not installed. Consequence: it imports nothing of the package, asks only for the
blocks of leaks, calls no code of the program's (objects are looked at by their types, never asked), ends at a limit, keeps nothing,
and raises nothing into the program.
"""

from .scan import DEFAULT_LIMIT_S, Look, look

__all__ = ["DEFAULT_LIMIT_S", "Look", "look"]
