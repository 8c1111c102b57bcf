"""Sizes for people, as the command writes them (replay/src/units.rs): `512 B`, `4.00 MiB`, `22.90 GiB`."""

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def text(size: int) -> str:
    """Bytes in the binary unit in which the number has at most four digits before the point."""
    if size < 1024:
        return f"{size} B"
    value, unit = size / 1024, 0
    # 1023.996 would be written as 1024.00.
    while value >= 1023.995 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.2f} {_UNITS[unit]}"
