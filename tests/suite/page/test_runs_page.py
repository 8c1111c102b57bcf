"""The page of many ranks, and of many runs, in a real Chromium. Its oracle is `ranks --json`."""

import json
import subprocess

import pytest

from browser import browser  # noqa: F401 (fixture)
from conftest import BUILD, gpumemtrace

RANKS = 60
EVENTS = 20_000
ALPHA_OF_CELL = """(row, part) => {
    const canvas = document.querySelector(".heat-map canvas");
    const parts = 48, left = 110, ratio = canvas.width / canvas.clientWidth;
    const height = Math.max(1, Math.min(22, Math.floor(640 / RANKS)));
    const x = left + (part + 0.5) * (canvas.clientWidth - left) / parts, y = row * height + height / 2 - 1;
    return canvas.getContext("2d").getImageData(Math.floor(x * ratio), Math.floor(y * ratio), 1, 1).data[3];
}""".replace("RANKS", str(RANKS))


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """A folder with the traces of a job; rank 12 leaks more than the others, and rank 7 is garbage."""
    folder = tmp_path_factory.mktemp("job") / "traces"
    folder.mkdir()
    for rank in range(RANKS):
        synthesize = [BUILD / "examples" / "synthesize", str(EVENTS), folder / f"run.rank{rank:02}.trace", "0", str(rank), str(RANKS)]
        subprocess.run(synthesize, check=True)
    (folder / "run.rank07.trace").write_bytes(b"no trace")
    return folder


def test_page_of_many_ranks_has_the_numbers_of_ranks(browser, traces, tmp_path):  # noqa: F811
    page = tmp_path / "job.html"
    gpumemtrace("ranks", traces, "--html", page, code=6)
    job = json.loads(gpumemtrace("ranks", traces, "--json", code=6))
    browser.open(page)
    assert browser.problems() == []
    [run] = browser.evaluate("window.gpumemtraceRuns.runs")
    assert run["peak"]["most_bytes"] == job["peak_live"]["most_bytes"]
    assert [rank["rank"] for rank in run["ranks"]] == [trace["rank"] for trace in job["traces"]]
    by_device = [device for trace in job["traces"] for device in trace["devices"]]
    assert [rank["live_bytes"] for rank in run["ranks"]] == [device["live_bytes_over_time"] for device in by_device]
    assert [rank["peak_live_bytes"] for rank in run["ranks"]] == [device["peak_live_bytes"] for device in by_device]
    # The highest part of a recording is its peak.
    assert all(max(rank["live_bytes"]) == rank["peak_live_bytes"] for rank in run["ranks"])
    assert {line["line"] for line in run["lines"]} == {line["site"]["text"] for line in job["lines"]}
    text = browser.text("main")
    assert "1 trace cannot be read" in text and "rank without a trace: 7" in text
    assert job["lines"][0]["site"]["text"] in text


def test_map_is_darker_where_more_is_allocated(browser, traces, tmp_path):  # noqa: F811
    page = tmp_path / "job.html"
    gpumemtrace("ranks", traces, "--html", page, code=6)
    browser.open(page)
    [run] = browser.evaluate("window.gpumemtraceRuns.runs")
    most = max(rank["peak_live_bytes"] for rank in run["ranks"])
    cells = [[row, part] for row in (0, 5, 58) for part in (0, 11, 24, 47)]
    alphas = browser.evaluate(f"{cells}.map((cell) => ({ALPHA_OF_CELL})(...cell))")
    for (row, part), alpha in zip(cells, alphas, strict=True):
        expected = 255 * (0.06 + 0.94 * run["ranks"][row]["live_bytes"][part] / most)
        assert abs(alpha - expected) <= 2, (row, part)
    browser.evaluate("""{
        const scale = document.querySelector("[aria-label='Lightest colour']");
        scale.value = "lowest";
        scale.dispatchEvent(new Event("change"));
    }""")
    least = min(bytes for rank in run["ranks"] for bytes in rank["live_bytes"])
    [alpha] = browser.evaluate(f"[({ALPHA_OF_CELL})(0, 11)]")
    expected = 255 * (0.06 + 0.94 * (run["ranks"][0]["live_bytes"][11] - least) / (most - least))
    assert abs(alpha - expected) <= 2
    browser.evaluate("document.querySelector('.heat-map canvas').focus(); null")
    browser.press("ArrowDown", "ArrowDown", "ArrowRight")
    assert "rank 1" in browser.evaluate("document.querySelector('[aria-live]').textContent")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_of_runs_shows_the_selected_one(browser, traces, tmp_path, theme):  # noqa: F811
    archive = tmp_path / "archive"
    for name, ranks in (("first", (0, 1)), ("second", (12, 13, 14))):
        chosen = [traces / f"run.rank{rank:02}.trace" for rank in ranks]
        gpumemtrace("export", "parquet", *chosen, "--run-name", name, "-o", archive)
    # Both runs lack ranks.
    gpumemtrace("history", archive, "--html", tmp_path / "archive.html", code=6)
    browser.open(tmp_path / "archive.html", theme=theme)
    assert browser.problems() == []
    rows = "document.querySelectorAll('table.sorted')[0].querySelectorAll('tbody tr')"
    assert browser.evaluate(f"{rows}.length") == 2
    assert browser.evaluate("document.querySelector('.run-title').textContent") == "second"
    browser.evaluate(f"[...{rows}].find((row) => row.textContent.includes('first')).click(); null")
    browser.settle()
    assert browser.evaluate("document.querySelector('.run-title').textContent") == "first"
    assert browser.evaluate("location.hash") == "#run=first"
    assert browser.axe_violations() == []
    browser.open(tmp_path / "archive.html", fragment="run=first", theme=theme)
    assert browser.evaluate("document.querySelector('.run-title').textContent") == "first"
