"""Opens files in speedscope's offline page in Chromium, and reads what it shows."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from browser import CHROMIUM
from readers import node_package, run_reader, skip_or_fail

UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


@dataclass
class SpeedscopePage:
    """The sandwich view of the first profile."""

    title: str
    #: Rows of the tables: the texts of their cells.
    rows: list

    @property
    def functions(self):
        """Returns total and self of each row of the table of functions, by name."""
        cells = [row for row in self.rows if len(row) == 3 and "%" in row[0] and "%" in row[1]]
        return [(name, parse_amount(total), parse_amount(own)) for total, own, name in cells]

    @property
    def profiles(self):
        """Returns the total of each profile by name, as shown: sizes are rounded."""
        return {row[1]: row[2] for row in self.rows if len(row) == 3 and row[0].isdigit()}


def parse_amount(text):
    """Returns the number in `8,388,608 (5.0%)`; sizes with a unit are rounded."""
    number, unit = re.match(r"([\d,.]+)(?: ([KMGT]?B))?", text).groups()
    return float(number.replace(",", "")) * UNITS[unit or "B"]


def format_size(size):
    """Returns a size as speedscope shows it."""
    unit = next((unit for unit in ["TB", "GB", "MB", "KB"] if size >= UNITS[unit]), "B")
    return f"{size / UNITS[unit]:.2f} {unit}"


def open_in_speedscope(path, folder, screenshot=None):
    """Opens a file; fails if the page shows an error or no profile."""
    if not os.access(CHROMIUM, os.X_OK):
        skip_or_fail("there is no Chromium (Debian's package chromium, or set CHROMIUM)")
    modules = node_package("speedscope").parent
    script = Path(__file__).parent / "speedscope.mjs"
    shown = run_reader(["node", script, modules, path, folder, *([screenshot] if screenshot else [])])
    return SpeedscopePage(**json.loads(shown.stdout))
