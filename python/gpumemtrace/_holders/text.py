"""Makes text safe for terminals. Here, because the scanner runs without the rest of the package."""


def printable(text: str) -> str:
    """One line without control characters and direction marks: these are written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
