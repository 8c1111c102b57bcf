"""The card of `html --compare`. Its oracle is `gpumemtrace compare`."""

import json
import re

import pytest

from browser import browser  # noqa: F401 (fixture)
from conftest import gpumemtrace
from page_runs import bytes_text, page_of  # noqa: F401 (fixture)

STATUS = {"appeared": "new", "grew": "grew", "changed": "changed", "shrank": "shrank", "disappeared": "gone"}


def change_text(amount, is_bytes=True):
    change = amount["change"]
    size = bytes_text(abs(change)) if is_bytes else f"{abs(change):,}"
    return "=" if change == 0 else f"{'+' if change > 0 else '-'}{size}"


def place_text(line):
    """`train.py:46` and the line before, as compare pairs them."""
    site, before = line["after"] or line["before"], line["before"]
    moved = before and before["line"] != site["line"]
    return f"{site['file'].rsplit('/', 1)[-1]}:{site['line']}", f"(was line {before['line']})" if moved else ""


@pytest.mark.parametrize("view", ["overview", "timeline"])
@pytest.mark.parametrize("kind", ["moved", "compared"])
def test_lines_are_those_of_compare(browser, page_of, kind, view):  # noqa: F811
    page = page_of(kind)
    comparison = json.loads(gpumemtrace("compare", page.compared[0], page.traces[0], "--json"))
    browser.open(page.path, view)
    browser.text()
    rows = browser.evaluate(f"""[...document.querySelectorAll("[data-view={view}] table.changes tbody tr")]
        .map((row) => [...row.cells].map((cell) => cell.textContent))""")
    assert comparison["lines"] and len(rows) == len(comparison["lines"])
    for row, line in zip(rows, comparison["lines"], strict=True):
        status, place, *amounts = row
        assert status == STATUS[line["status"]]
        site, moved = place_text(line)
        assert place.startswith(site)
        assert re.findall(r"\(was line \d+\)", place) == ([moved] if moved else [])
        expected = [line["at_peak_bytes"], line["retained_bytes"], line["bytes_per_step"]]
        assert amounts == [*map(change_text, expected), change_text(line["allocations_per_step"], False)]
    text = browser.evaluate(f"document.querySelector('[data-view={view}] table.changes').closest('section').innerText")
    steps = comparison["steps"]
    assert f"Compared: steps {steps['first']} to {steps['last']}." in text
    assert browser.problems() == []


def test_moved_lines_are_paired(browser, page_of):  # noqa: F811
    """All lines moved by seven, but only the leak holds more."""
    page = page_of("moved")
    browser.open(page.path)
    rows = browser.evaluate("""[...document.querySelectorAll("table.changes tbody tr")]
        .map((row) => [...row.cells].map((cell) => cell.textContent))""")
    assert [row[0] for row in rows] == ["grew"]
    assert rows[0][1].startswith("train.py:46 in keep_features() (was line 39)")
    assert rows[0][2] == f"+{bytes_text(4 * 32 * 1024)}", "four more steps"
    assert browser.problems() == []
