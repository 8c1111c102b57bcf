"""The error of this package."""


class QueryError(ValueError):
    """A question has no answer. The text says why and what to do.

    `code` is the exit code of the command line: 2 for wrong usage or a missing engine, 5 for an
    archive that cannot be read.
    """

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code
