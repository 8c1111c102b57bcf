"""Sizes as text, in the command's format: `512 B`, `4.00 MiB`, `22.90 GiB`."""

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def format_size(size_bytes: int) -> str:
    """The size in the smallest binary unit that needs at most four digits before the point."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value, unit = size_bytes / 1024, 0
    # 1023.996 would print as 1024.00.
    while value >= 1023.995 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.2f} {_UNITS[unit]}"
