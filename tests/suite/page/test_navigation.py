"""Where the page of `html` leads: the first rank, each finding once, call sites, links and Back."""

import json
import re

import pytest

from browser import browser  # noqa: F401 (fixture)
from conftest import REPOSITORY
from page_runs import page_of  # noqa: F401 (fixture)

VIEW = "document.querySelector('main [data-view]:not([hidden])')"
#: What names a call site in a list, table or title, and is no part of a link.
UNLINKED = """(labels) => {
    const view = document.querySelector("main [data-view]:not([hidden])");
    const walker = document.createTreeWalker(view, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
        const { parentElement: parent, data } = walker.currentNode;
        // Frames of a stack are no list of call sites.
        if (!labels.includes(data.trim()) || parent.closest(".stack, .flame-path")) continue;
        const row = parent.closest(".legend-item");
        if (!parent.closest("button.link") && !row?.querySelector("button.link")) found.push(parent.outerHTML.slice(0, 200));
    }
    return found;
}"""


def headers_and_findings(browser):  # noqa: F811
    header = browser.text("header .headline")
    findings = browser.evaluate("[...document.querySelectorAll('.finding h2')].map((each) => each.textContent)")
    return header, findings


def test_rank_with_the_worst_finding_is_shown_first(browser, page_of):  # noqa: F811
    page = page_of("ranks")
    assert {verdict["trace"] for verdict in page.report["verdicts"] if verdict["severity"] != "info"} == {1}
    browser.open(page.path)
    header, findings = headers_and_findings(browser)
    assert "rank 1" in header and "rank 0" not in header
    assert browser.evaluate("document.querySelector('select[name=trace]').value") == "1"
    [leak] = [verdict for verdict in page.report["verdicts"] if verdict["kind"] == "leak"]
    assert any(text.split(" at ")[0] == leak["summary"].split(" at ")[0] for text in findings)
    assert "Warning, rank 1" in browser.text(".findings")
    # A rank without findings says so of itself, and names the finding of the other.
    browser.open(page.path, "overview?trace=0")
    header, findings = headers_and_findings(browser)
    assert findings == ["No problems found on rank 0"]
    assert header.startswith("On rank 1: Likely leak")


@pytest.mark.parametrize("kind", ["leak", "oom", "fragmented", "phases", "ranks", "damaged"])
def test_overview_says_each_finding_once(browser, page_of, kind):  # noqa: F811
    page = page_of(kind)
    browser.open(page.path)
    header, findings = headers_and_findings(browser)
    assert findings and len(set(findings)) == len(findings)
    for finding in findings:
        assert finding not in header
    shown = f"{header} {browser.text()}"
    for finding in findings:
        assert shown.count(" ".join(finding.split())) == 1, finding
    # Other views lead to the finding, in their title.
    severe = [verdict for verdict in page.report["verdicts"] if verdict["severity"] != "info"]
    if severe:
        browser.go_to("run")
        title = browser.evaluate("document.querySelector('h1').textContent")
        words = {verdict["summary"].split(" at ")[0] for verdict in severe}
        assert any(title.startswith(text) for text in words), title


def test_parts_of_findings_have_no_card_of_their_own(browser, page_of):  # noqa: F811
    browser.open(page_of("leak").path)
    kinds = [verdict["kind"] for verdict in page_of("leak").report["verdicts"]]
    assert kinds.count("leak") == 1 and "creep_confirmed" in kinds
    assert "allocated memory grows by" not in browser.text(".findings")
    page = page_of("oom")
    verdicts = {verdict["kind"]: verdict for verdict in page.report["verdicts"]}
    assert {"oom", "high_pressure", "failed_calls"} <= verdicts.keys()
    browser.open(page.path)
    [title] = browser.evaluate("[...document.querySelectorAll('.finding h2')].map((each) => each.textContent)")
    assert title.startswith("Out of memory on GPU 0")
    # What the error's card lacks is a sentence of it.
    assert verdicts["failed_calls"]["summary"][1:] in browser.text(".findings")


@pytest.mark.parametrize("kind", ["leak", "oom", "fragmented", "moved", "ranks"])
def test_each_listed_call_site_is_a_link(browser, page_of, kind):  # noqa: F811
    page = page_of(kind)
    labels = {site["label"] for trace in page.file.data["traces"] for site in trace["sites"]}
    browser.open(page.path)
    for view in browser.views():
        browser.go_to(view)
        text = browser.text()
        assert browser.evaluate(f"({UNLINKED})({json.dumps(sorted(labels))})") == [], view
        if view in ("sites", "timeline"):
            assert any(label in text for label in labels)
    assert browser.problems() == []


def click_link(browser, selector, text):  # noqa: F811
    """Clicks a link of a call site, and waits for the flame graph."""
    browser.evaluate(f"""{{
        const links = [...{VIEW}.querySelectorAll({json.dumps(selector)})];
        links.find((each) => (each.getAttribute("aria-label") ?? each.textContent).endsWith({json.dumps(text)})).click();
        null;
    }}""")
    browser.settle()


PLACES = [
    ("leak", "overview", "table.largest button.link", "peak"),
    ("leak", "timeline", ".legend-item button.link", None),
    ("leak", "sites", "table.sorted button.link", None),
    ("leak", "leaks", ".case-title button.link", "kept"),
    ("leak", "flame", "table button.link", None),
    ("oom", "oom", ".case-columns button.link", "live"),
    ("fragmented", "fragmentation", ".culprits button.link", "live"),
    ("fragmented", "fragmentation", ".band-legend button.link", None),
    ("moved", "overview", "table.changes button.link", "peak"),
]


@pytest.mark.parametrize(("kind", "view", "selector", "mode"), PLACES)
def test_call_site_opens_flame_graph(browser, page_of, kind, view, selector, mode):  # noqa: F811
    page = page_of(kind)
    browser.open(page.path, view)
    browser.text()
    trace = page.file.data["traces"][0]
    names = browser.evaluate(f"""[...{VIEW}.querySelectorAll({json.dumps(selector)})]
        .map((each) => (each.getAttribute("aria-label") ?? each.textContent).replace("Stack of ", ""))""")
    by_label = {site["label"]: site for site in trace["sites"]}
    name = next(name for name in names if name in by_label and by_label[name]["line"])
    site = by_label[name]
    click_link(browser, selector, name)
    assert browser.view() == "flame"
    link = browser.evaluate("location.hash")
    assert f"site={site['id']}" in link and "o.flame.zoom=site" in link
    assert f"o.flame.mode={mode}" in link if mode else "o.flame.mode" not in link
    stack = browser.text("main [data-view=flame] details[open] .stack, main [data-view=flame] .stack")
    assert f"{site['file'].rsplit('/', 1)[-1]}:{site['line']}" in stack
    # The graph is zoomed: its path begins at all, and ends at or below the call site.
    path = browser.evaluate("[...document.querySelectorAll('.flame-path button')].map((each) => each.textContent)")
    assert path[0] == "all" and len(path) > 1
    shown = browser.text("[data-view=flame] .flame-caption")
    assert re.search(r"selected call site are lit: [\d.]+ \w?i?B", shown)
    # Back returns to the list.
    browser.evaluate("new Promise((done) => { addEventListener('hashchange', done, { once: true }); history.back(); }).then(() => null)")
    browser.settle()
    if view != "flame":
        assert browser.view() == view
    assert browser.problems() == []


def wait_for_url(browser):  # noqa: F811
    """The URL follows some changes later, and changes soon after each other are one step."""
    return browser.evaluate("new Promise((done) => setTimeout(() => done(location.hash), 600))")


def go_back(browser, times=1):  # noqa: F811
    for _ in range(times):
        browser.evaluate("new Promise((done) => { addEventListener('hashchange', done, { once: true }); history.back(); }).then(() => null)")
        browser.settle()


def flame_path(browser):  # noqa: F811
    return browser.evaluate("""[...document.querySelectorAll(".flame-path:not([hidden]) button")].map((each) => each.textContent)""")


def test_zoom_of_flame_graph_is_in_the_link_and_in_the_history(browser, page_of):  # noqa: F811
    page = page_of("leak")
    browser.open(page.path, "flame")
    browser.evaluate("document.querySelector('.flame-chart canvas').focus(); null")
    seen = [(browser.evaluate("location.hash"), flame_path(browser))]
    for _ in range(3):
        browser.press("ArrowDown", "Enter")
        seen.append((wait_for_url(browser), flame_path(browser)))
    assert [len(path) for _, path in seen] == [0, 2, 3, 4]
    assert len({link for link, _ in seen}) == 4
    for link, path in reversed(seen[:-1]):
        go_back(browser)
        assert (browser.evaluate("location.hash"), flame_path(browser)) == (link, path)
    browser.evaluate("history.forward(); null")
    assert wait_for_url(browser) == seen[1][0] and flame_path(browser) == seen[1][1]
    link, path = seen[-1]
    browser.open(page.path, link[1:])
    assert flame_path(browser) == path
    # With other frames, the tree has other nodes.
    browser.evaluate("[...document.querySelectorAll('.flame-switches button')].find((each) => each.textContent === 'Own code only').click(); null")
    assert "flame.zoom" not in wait_for_url(browser) and flame_path(browser) == []
    for value in ("9" * 20, "-1", "<b>", "NaN", "1.5"):
        browser.open(page.path, f"flame?o.flame.zoom={value}")
        assert flame_path(browser) == [] and browser.problems() == []


def test_moment_of_the_map_is_in_the_link_and_in_the_history(browser, page_of):  # noqa: F811
    page = page_of("fragmented")
    browser.open(page.path, "fragmentation")
    caption = "document.querySelector('.map-caption').textContent"
    buttons = "[...document.querySelectorAll('[data-view=fragmentation] .toolbar .segmented button')]"
    seen = []
    for name in ("Peak", "End", "Largest gap"):
        browser.evaluate(f"{buttons}.find((each) => each.textContent === '{name}').click(); null")
        seen.append((wait_for_url(browser), browser.evaluate(caption)))
    assert len(set(seen)) == 3
    go_back(browser)
    assert (browser.evaluate("location.hash"), browser.evaluate(caption)) == seen[1]
    go_back(browser)
    assert (browser.evaluate("location.hash"), browser.evaluate(caption)) == seen[0]
    for link, text in seen:
        browser.open(page.path, link[1:])
        assert browser.evaluate(caption) == text
    # A moved slider is one step.
    browser.open(page.path, "fragmentation")
    before = browser.evaluate("[location.hash, history.length]")
    browser.evaluate("""{
        const slider = document.querySelector("input[type=range]");
        for (const value of [1, 2, 3, 4, 5]) {
            slider.value = value;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
        }
        null;
    }""")
    after = wait_for_url(browser)
    assert after != before[0] and browser.evaluate("history.length") == before[1] + 1
    go_back(browser)
    assert browser.evaluate("location.hash") == before[0]
    assert browser.problems() == []


def test_rank_is_in_the_link_and_in_the_history(browser, page_of):  # noqa: F811
    page = page_of("ranks")
    browser.open(page.path, "flame")
    picker = "document.querySelector('select[name=trace]')"
    browser.evaluate("document.querySelector('.flame-chart canvas').focus(); null")
    browser.press("ArrowDown", "Enter")
    zoomed = wait_for_url(browser)
    assert "o.flame.zoom=" in zoomed
    browser.evaluate(f"{picker}.value = 0; {picker}.dispatchEvent(new Event('change', {{ bubbles: true }})); null")
    link = wait_for_url(browser)
    assert "trace=0" in link and "flame.zoom" not in link, "another trace has other call stacks"
    go_back(browser)
    assert browser.evaluate(f"[location.hash, {picker}.value]") == [zoomed, "1"]
    browser.open(page.path, link[1:])
    assert browser.evaluate(f"{picker}.value") == "0"
    assert browser.problems() == []


def test_names_of_views_are_those_of_the_page(browser, page_of):  # noqa: F811
    text = (REPOSITORY / "docs" / "commands" / "html.md").read_text()
    views = re.search(r"^## Views$(.*?)^## ", text, re.MULTILINE | re.DOTALL)[1]
    documented = re.findall(r"^\*\*(.+?)\*\*:", views, re.MULTILINE)
    shown = set()
    for kind in ("ranks", "oom", "fragmented"):
        browser.open(page_of(kind).path)
        titles = browser.evaluate("[...document.querySelectorAll('nav.tabs a')].map((tab) => tab.textContent)")
        assert titles == [name for name in documented if name in titles]
        shown |= set(titles)
    assert shown == set(documented)
