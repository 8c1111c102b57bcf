"""The page of `gpumemtrace html` in a real Chromium. The oracle of its numbers is `replay`.

Each kind of trace is recorded once, and its page is opened from a file, without a network.
"""

import json
import os
import random
import re

import pytest

from browser import browser  # noqa: F401 (fixture)
from conftest import FULL, gpumemtrace
from page_runs import GOLDEN, KINDS, bytes_text, page_of  # noqa: F401 (fixture)

MOMENTS = 100
#: Kinds that every view is compared for.
BROWSED = list(KINDS) if FULL else ["fragmented", "ranks"]
#: Kinds with much on their pages: their views are checked in both themes and by axe-core.
RICH = ["leak", "oom", "fragmented", "phases", "ranks", "compared", "damaged"]
WIDTH = 1280
BYTES = re.compile(r"\d[\d,]*(?:\.\d+)? (?:B|KiB|MiB|GiB|TiB|PiB)\b")
#: Layers of the page, as replay names those of snapshots.
LAYERS = {"torch": "torch", "driver": "device"}


def all_numbers(value):
    """Yields every integer inside a JSON value."""
    if isinstance(value, dict):
        for item in value.values():
            yield from all_numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from all_numbers(item)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value


def as_javascript(value):
    """Rounds integers of 2^53 and more, as JavaScript's numbers do: the time since 1970 in ns."""
    if isinstance(value, dict):
        return {key: as_javascript(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(as_javascript, value))
    return float(value) if isinstance(value, int) and abs(value) >= 1 << 53 else value


def snapshots(page, trace, times_ns):
    """Returns replay's snapshots by time, device and layer."""
    flags = [word for time_ns in times_ns for word in ("--at", f"{time_ns}ns")]
    found = page.replay([page.trace_of(trace)], *flags)["snapshots"]
    asked = dict(zip(dict.fromkeys(snapshot["when"] for snapshot in found), times_ns, strict=True))
    return {(asked[snapshot["when"]], snapshot["device"], snapshot["layer"]): snapshot for snapshot in found}


def bytes_by_site(snapshot):
    """Returns bytes by site; none of a layer without a snapshot, which had no events yet."""
    sums = {}
    for site in snapshot["sites"] if snapshot else []:
        sums[site["site"]["id"]] = sums.get(site["site"]["id"], 0) + site["bytes"]
    return sums


def without_zeros(sums):
    return {site: held for site, held in sums.items() if held}


def choose_moments(browser, place, edges, choice):  # noqa: F811
    """Chooses random edges, up to half of them on both sides of a bin in which bytes changed."""
    changes = browser.evaluate(f"""{{
        const live = {json.dumps(edges)}.map((time) => JSON.stringify(window.gpumemtrace.liveAt(time, {place[0]}, {place[1]})));
        live.flatMap((text, index) => (index > 0 && text !== live[index - 1] ? [index] : []));
    }}""")
    changes = choice.sample(changes, min(MOMENTS // 4, len(changes)))
    chosen = {edges[index + offset] for index in changes for offset in (-1, 0)}
    others = [edge for edge in edges if edge not in chosen]
    return sorted(chosen | set(choice.sample(others, min(MOMENTS - len(chosen), len(others)))))


@pytest.mark.parametrize("kind", BROWSED)
def test_page_answers_as_replay(browser, page_of, kind):  # noqa: F811
    page = page_of(kind)
    browser.open(page.path)
    assert json.loads(page.file.report_bytes) == page.report
    assert as_javascript(browser.call("report")) == as_javascript(page.report)
    choice = random.Random(kind)
    compared_moments = 0
    for index, trace in enumerate(page.file.data["traces"]):
        for number, device in enumerate(trace["devices"]):
            edges = browser.call("edges", index, number)
            assert edges == sorted(edges)
            moments = choose_moments(browser, (index, number), [edge for edge in edges if 0 <= edge <= trace["end_ns"]], choice)
            expected = snapshots(page, index, moments)
            asked = f"{moments}.map((time) => window.gpumemtrace.liveAt(time, {index}, {number}))"
            live = dict(zip(moments, browser.evaluate(asked)))
            for moment in moments:
                snapshot = expected.get((moment, device["ordinal"], LAYERS[device["layer"]]))
                assert without_zeros(live[moment]) == without_zeros(bytes_by_site(snapshot)), f"{moment} ns"
            compared_moments += sum(map(bool, live.values()))
            check_kept_bytes(browser, (index, number), edges, live, choice)
    assert compared_moments > 0, "no block is live at any edge"


def check_kept_bytes(browser, place, edges, live, choice):  # noqa: F811
    """What lives at b was allocated in [a, b] or lived at a."""
    moments = sorted(live)
    for _ in range(20):
        begin, end = sorted(choice.choices(moments, k=2))
        kept = browser.call("keptBetween", begin, end, *place)
        for site, held in live[end].items():
            older = held - kept.get(site, 0)
            assert 0 <= older <= live[begin].get(site, 0), (begin, end, site)
        assert set(kept) <= set(live[end])
        assert browser.call("keptBetween", edges[0], end, *place) == live[end]


@pytest.mark.parametrize("kind", KINDS)
def test_charts_hold_numbers_of_report(page_of, kind):
    """Reads the embedded data without the page's own code."""
    page = page_of(kind)
    file = page.file
    for index, trace in enumerate(file.data["traces"][: len(page.traces)]):
        for device in trace["devices"]:
            [info] = [one for one in page.report["devices"] if (one["trace"], one["device"]) == (index, device["ordinal"])]
            series = {name: file.column(column) for name, column in device["series"].items() if name.endswith(("_min", "_max"))}
            if device["layer"] == "torch":
                assert max(series["live_max"]) == info["peak"]["live_bytes"]
                assert max(series["reserved_max"]) == info["peak"]["reserved_bytes"]
            assert max(series["device_max"]) == info["peak"]["device_bytes"]
            for name in ("live", "reserved", "device"):
                assert all(low <= high for low, high in zip(series[f"{name}_min"], series[f"{name}_max"], strict=True))
            bins = device["bins"]
            stacked = zip(*(file.column(site["bytes"]) for site in bins["sites"]), file.column(bins["others"]))
            assert [sum(values) for values in stacked] == file.column(bins["live"])
            for kind_of_group in bins["groups"]:
                divided = zip(*(file.column(group["bytes"]) for group in kind_of_group["groups"]))
                assert [sum(values) for values in divided] == file.column(bins["live"]), kind_of_group["by"]
            if device["layer"] == "torch":
                live = file.column(bins["live"])
                assert max(live) == info["peak"]["live_bytes"]
                [categories] = [groups["groups"] for groups in bins["groups"] if groups["by"] == "category"]
                at_peak = {group["name"]: file.column(group["bytes"])[live.index(max(live))] for group in categories}
                [peak] = [one for one in page.report["peak"] if (one["trace"], one["device"]) == (index, device["ordinal"])]
                expected = {share["category"].replace("_", " "): share["bytes"] for share in peak["categories"]}
                assert {name: size for name, size in at_peak.items() if size} == expected
            gap = device["gap"]
            if gap:
                causes = zip(*(file.column(cause["bytes"]) for cause in gap["causes"]))
                assert [sum(values) for values in causes] == file.column(gap["gap"])
                # The map shows states of the chart's moments, and of the report's.
                points = dict(zip(file.column(gap["time_ns"]), zip(file.column(gap["reserved"]), file.column(gap["live"]))))
                for keyframe in device["keyframes"]:
                    if keyframe["why"] == "interval":
                        assert points[keyframe["time_ns"]] == (keyframe["reserved_bytes"], keyframe["live_bytes"])
            for keyframe in device["keyframes"]:
                assert sum(file.column(keyframe["blocks"]["bytes"])) == keyframe["live_bytes"]
                if keyframe["segments"]:
                    assert sum(file.column(keyframe["segments"]["bytes"])) == keyframe["reserved_bytes"]


def text_of_views(browser, views):  # noqa: F811
    texts = {}
    for view in views:
        browser.go_to(view)
        assert browser.view() == view
        texts[view] = browser.text()
    return texts


def text_of_choices(browser, view):  # noqa: F811
    """Returns the text of a view for each option of each of its menus."""
    browser.go_to(view)
    menu = f"document.querySelectorAll('[data-view={view}] select')"
    texts = [browser.text()]
    for number in range(browser.evaluate(f"{menu}.length")):
        for option in browser.evaluate(f"[...{menu}[{number}].options].map((option) => option.value)"):
            browser.evaluate(f"""{{
                const menu = {menu}[{number}];
                menu.value = {json.dumps(option)};
                menu.dispatchEvent(new Event("input", {{ bubbles: true }}));
                menu.dispatchEvent(new Event("change", {{ bubbles: true }}));
                null;
            }}""")
            texts.append(browser.text())
    return " ".join(texts)


@pytest.mark.parametrize("kind", BROWSED)
def test_views_show_numbers_of_report(browser, page_of, kind):  # noqa: F811
    page = page_of(kind)
    report = page.report
    shown_trace = page.file.data["first_trace"]
    browser.open(page.path)
    texts = text_of_views(browser, browser.views())
    for device in [one for one in report["devices"] if one["trace"] == shown_trace][:1]:
        for moment in ("peak", "end"):
            for name in ("live_bytes", "reserved_bytes", "device_bytes"):
                held = device[moment][name]
                assert held is None or bytes_text(held) in texts["overview"], (moment, name)
    for leak in [one for one in report.get("leaks") or [] if one["trace"] == shown_trace]:
        assert bytes_text(leak["bytes"]) in texts["leaks"]
        if leak["bytes_per_step"]:
            assert bytes_text(round(leak["bytes_per_step"])) in texts["leaks"]
        if leak["site"]["file"]:
            for text in (texts["leaks"], texts["overview"]):
                assert f"{os.path.basename(leak['site']['file'])}:{leak['site']['line']}" in text
    gaps = [one for one in report.get("fragmentation") or [] if one["trace"] == shown_trace]
    if gaps:
        shown = text_of_choices(browser, "fragmentation")
    for gap in gaps:
        for name in ("gap_bytes", "reserved_bytes"):
            assert bytes_text(gap[name]) in shown, (gap["at"], name)
        for cause in gap["causes"]:
            assert bytes_text(cause["bytes"]) in shown, (gap["at"], cause["cause"])
    for oom in [one for one in report.get("oom") or [] if one["trace"] == shown_trace]:
        for held in [oom["requested_bytes"], oom["live_bytes"], *(cause["bytes"] for cause in oom["unused_causes"])]:
            assert bytes_text(held) in texts["oom"]
    peaks = [one for one in report["peak"] if (one["trace"], one["device"]) == (shown_trace, 0)]
    for site in [site for peak in peaks[:1] for site in peak["sites"]][:100]:
        assert bytes_text(site["bytes"]) in texts["sites"], site["site"]["id"]
    assert browser.problems() == []


def test_reserved_memory_with_other_settings_is_drawn(browser, page_of):  # noqa: F811
    """The areas have the shape that `gpumemtrace whatif` predicts."""
    page = page_of("fragmented")
    [effects] = page.report["setting_effects"]
    settings = [effect["setting"] for effect in effects["settings"]]
    answer = json.loads(gpumemtrace("whatif", page.traces[0], "--json", *[f"--alloc-conf={setting}" for setting in settings]))
    rows = {row["setting"] or "PyTorch's defaults": row for row in answer["rows"]} | {"recorded": answer["base"]}
    assert len(rows) >= 5
    most = max(row["peak_reserved_bytes"] for row in rows.values())
    browser.open(page.path)
    browser.go_to("fragmentation")
    drawn = browser.evaluate("""[...document.querySelectorAll(".track.tall > span")].map((area) =>
        [area.closest("li").querySelector(".waterfall-name").textContent, area.style.clipPath])""")
    assert {name for name, _ in drawn} == rows.keys()
    for name, shape in drawn:
        points = [tuple(map(float, re.findall(r"[\d.]+", point))) for point in shape.removeprefix("polygon(").split(",")]
        peaks = rows[name]["reserved_curve"]["peak_bytes"]
        edges = [edge / len(peaks) * 100 for span in range(len(peaks)) for edge in (span, span + 1)]
        heights = [100 - peak / most * 100 for peak in peaks for _ in range(2)]
        expected = [(0, 100), *zip(edges, heights), (100, 100)]
        assert len(points) == len(expected)
        assert all(point == pytest.approx(wanted, abs=0.01) for point, wanted in zip(points, expected)), name


@pytest.mark.parametrize("kind", ["leak", "oom", "fragmented", "pluggable"] if FULL else ["fragmented"])
def test_views_show_no_other_bytes(browser, page_of, kind):  # noqa: F811
    """Every number of bytes in the text of a view is one of the report."""
    page = page_of(kind)
    browser.open(page.path)
    known = {text for number in all_numbers(page.report) for text in (bytes_text(number), f"{number:,} B")}
    # PyTorch's limit of small blocks.
    known |= {"0 B", "1 MiB"}
    # Sentences of the report, and the text report, which the page has too.
    known |= set(BYTES.findall(json.dumps(page.report))) | set(BYTES.findall(gpumemtrace("replay", *page.traces)))
    # What is free on the device, and growth by reason.
    for device in page.report["devices"]:
        for used in (device["peak"]["device_bytes"], device["end"]["device_bytes"]):
            for outside in (0, device["residual_bytes"] or 0):
                free = device["total_bytes"] - used - outside
                known |= {bytes_text(free), f"{free:,} B"}
    benign = {}
    for growth in page.report.get("benign_growth") or []:
        benign[growth["rule"]] = benign.get(growth["rule"], 0) + growth["bytes"]
    known |= set(map(bytes_text, benign.values()))
    for view, text in text_of_views(browser, [view for view in browser.views() if view in ("overview", "leaks", "oom", "run")]).items():
        shown = set(BYTES.findall(text))
        assert shown - known == set(), view


@pytest.mark.parametrize("kind", BROWSED)
def test_views_are_accessible_and_fit(browser, page_of, kind):  # noqa: F811
    browser.open(page_of(kind).path, width=WIDTH)
    found = []
    for theme in ["light", "dark"] if kind in RICH else ["light"]:
        browser.set_theme(theme)
        for view in browser.views():
            text_of_views(browser, [view])
            if browser.evaluate("document.documentElement.scrollWidth") > WIDTH:
                found.append(f"{view}: scrolls sideways")
            if kind in RICH:
                found += [f"{view}, {theme}: {violation}" for violation in browser.axe_violations()]
            if "GPUMEMTRACE_PICTURES" in os.environ:
                browser.screenshot(f"{os.environ['GPUMEMTRACE_PICTURES']}/{kind}-{view}-{theme}.png")
    assert not found, "\n".join(found)
    assert browser.problems() == []


@pytest.mark.parametrize("kind", ["leak", "fragmented", "oom"] if FULL else ["fragmented"])
def test_timeline_divides_memory_as_its_data(browser, page_of, kind):  # noqa: F811
    page = page_of(kind)
    device = page.file.data["traces"][0]["devices"][0]
    live = page.file.column(device["bins"]["live"])
    highest = live.index(max(live))
    browser.open(page.path)
    browser.go_to("timeline")
    offered = []
    for groups in device["bins"]["groups"]:
        if len(groups["groups"]) < 2:
            continue
        label = {"category": "Categories", "stream": "Streams", "pool": "Pools"}[groups["by"]]
        browser.evaluate(f"""{{
            [...document.querySelectorAll("[data-view=timeline] button")].find((each) => each.textContent === "{label}").click();
            null;
        }}""")
        offered.append(groups["by"])
        text = browser.text()
        held = {group["name"]: page.file.column(group["bytes"])[highest] for group in groups["groups"]}
        assert sum(held.values()) == max(live)
        for name, size in held.items():
            assert not size or (name in text and bytes_text(size) in text), (groups["by"], name)
    assert {"category", "pool"} <= set(offered)
    assert browser.problems() == []


def test_two_traces_are_compared_at_the_selected_step(browser, page_of):  # noqa: F811
    page = page_of("compared")
    traces = page.file.data["traces"]
    compare = page.file.data["compare"]
    starts = page.file.column(traces[0]["steps"]["start_ns"])
    browser.open(page.path)
    # A moment of the chart inside a step of the trace that is shown. A step may have none.
    moments = browser.call("edges", 0, 0)
    step, moment = next((step, moment) for step in range(2, len(starts) - 1) for moment in moments
                        if starts[step] < moment < starts[step + 1])
    browser.go_to(f"flame?from={moment}&o.flame.mode=traces")
    text = browser.evaluate("""document.querySelector("[data-view=flame] [aria-label^='Flame graph.']").ariaLabel""")
    for index in (compare["before"], compare["after"]):
        trace, [device] = traces[index], traces[index]["devices"]
        end_of_step = page.file.column(trace["steps"]["start_ns"])[step + 1] - 1
        edges = browser.call("edges", index, 0)
        edge = min(range(len(edges)), key=lambda number: abs(edges[number] - end_of_step))
        blocks = device["blocks"]
        rows = zip(*(page.file.column(blocks[name]) for name in ("birth", "death", "bytes")))
        live = sum(size for birth, death, size in rows if birth < edge <= death)
        assert live and bytes_text(live) in text, (index, live)
        assert f"live in {trace['path']} at step" in text
    assert browser.problems() == []


@pytest.mark.parametrize("view", ["overview", "timeline"])
def test_difference_from_the_other_trace_is_shown(browser, page_of, view):  # noqa: F811
    page = page_of("compared")
    now, before = (json.loads(gpumemtrace("replay", trace, "--json")) for trace in (page.traces[0], page.compared[0]))
    browser.open(page.path, view)
    [text] = browser.evaluate(f"""[...document.querySelectorAll("[data-view={view}] section.card")]
        .map((card) => card.innerText).filter((text) => text.includes(" compared with "))""")
    for name in ("live_bytes", "reserved_bytes"):
        sizes = [report["devices"][0]["peak"][name] for report in (before, now)]
        change = sizes[1] - sizes[0]
        sign = "+" if change > 0 else "-" if change < 0 else ""
        shown = [bytes_text(sizes[0]), bytes_text(sizes[1]), sign + bytes_text(abs(change))]
        assert "\t".join(shown) in text, (name, text)
    assert browser.problems() == []


#: Controls that the Tab key must reach.
CONTROLS = "a[href], button, select, input, textarea, summary, [tabindex='0']"


def test_tab_key_reaches_every_control(browser, page_of):  # noqa: F811
    browser.open(page_of("leak").path)
    for view in browser.views():
        browser.go_to(view)
        browser.evaluate("""
            window.seen = new Set(); window.unmarked = [];
            document.activeElement.blur();
            document.onfocusin = null;
            document.addEventListener("focusin", ({ target }) => {
                window.seen.add(target);
                const style = getComputedStyle(target);
                const isMarked = style.outlineStyle !== "none" || style.boxShadow !== "none";
                if (!isMarked) window.unmarked.push(target.outerHTML.slice(0, 200));
            });
            null
        """)
        count = browser.evaluate(f"[...document.querySelectorAll({json.dumps(CONTROLS)})].length")
        browser.press(*["Tab"] * (count + 2))
        missed = browser.evaluate(f"""
            [...document.querySelectorAll({json.dumps(CONTROLS)})]
                .filter((each) => each.checkVisibility() && !each.disabled && each.tabIndex >= 0 && !window.seen.has(each))
                .map((each) => each.outerHTML.slice(0, 200))
        """)
        assert missed == [], view
        assert browser.evaluate("window.unmarked") == [], f"{view}: no visible focus"
    assert browser.problems() == []


def test_keys_open_views_and_back_returns(browser, page_of):  # noqa: F811
    browser.open(page_of("leak").path)
    views = browser.views()
    for number, view in enumerate(views, 1):
        browser.press(str(number))
        assert browser.view() == view
        assert browser.evaluate("location.hash").split("?")[0] == f"#{view}"
    for view in reversed(views[:-1]):
        browser.evaluate("new Promise((done) => { addEventListener('hashchange', done, { once: true }); history.back(); }).then(() => null)")
        browser.settle()
        assert browser.view() == view
    # With Tab and Enter.
    browser.evaluate("document.querySelector('nav.tabs a').focus(); null")
    browser.press("Tab", "Enter")
    assert browser.view() == views[1]
    assert browser.problems() == []


def test_link_shows_same_view_and_selection(browser, page_of):  # noqa: F811
    page = page_of("leak")
    leak = page.report["leaks"][0]["site"]["id"]
    browser.open(page.path)
    edges = browser.call("edges")
    begin, end = edges[len(edges) // 4], edges[len(edges) // 2]
    for view in browser.views():
        fragment = f"{view}?from={begin}&to={end}&site={leak}"
        browser.open(page.path, fragment)
        assert browser.view() == view
        shown = browser.text(".selection-bar")
        assert "Window: " in shown and "Call site: " in shown
        # Another view keeps the selection, and its link has it too.
        browser.press("2")
        link = browser.evaluate("location.hash")
        assert all(part in link for part in (f"from={begin}", f"to={end}", f"site={leak}"))
        browser.open(page.path, link[1:])
        assert (browser.evaluate("location.hash"), browser.text(".selection-bar")) == (link, shown)
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('.selection-bar').hidden")
    # Fragments that no page made.
    for fragment in ("nothing", "?from=x&to=y", "timeline?trace=9&device=-1&site=%00&axis=1", "%E0%A4%A"):
        browser.open(page.path, fragment)
        assert browser.view() in browser.views() and browser.problems() == []


def test_chart_follows_arrow_keys(browser, page_of):  # noqa: F811
    def moment(*keys):
        """The selected moment, which is that of the nearest edge."""
        browser.open(page_of("leak").path, "timeline")
        browser.evaluate("document.querySelector('[data-view=timeline] canvas[tabindex=\"0\"]').focus(); null")
        browser.press(*keys, "Enter")
        link = browser.evaluate(settled("/from=/.test(location.hash)", "location.hash"))
        assert browser.text(".selection-bar").startswith("Moment: ")
        assert browser.problems() == []
        return int(re.search(r"from=(\d+)", link)[1])

    first, fifth = moment("Home", "ArrowRight"), moment("Home", *["ArrowRight"] * 5)
    assert 0 < first < fifth < moment("Home", "PageDown")
    assert moment("End", "PageUp") < moment("End", *["ArrowLeft"] * 5) <= moment("End", "ArrowLeft")


def test_strip_follows_arrow_keys_from_edge_to_edge(browser, page_of):  # noqa: F811
    browser.open(page_of("leak").path, "flame")
    canvas = "document.querySelector('[data-view=flame] .moment-strip canvas')"
    edges = sorted(set(browser.evaluate("gpumemtrace.edges()")))
    link = ""

    def press(*keys):
        nonlocal link
        browser.evaluate(f"{canvas}.focus(); null")
        browser.press(*keys)
        link = browser.evaluate(settled(f"location.hash !== {json.dumps(link)} && /from=/.test(location.hash)", "location.hash"))
        return [int(time) for time in re.findall(r"(?:from|to)=(\d+)", link)]

    press("End")  # the last edge is the nearest
    assert press("ArrowLeft") == [edges[-2]]
    assert press("ArrowLeft") == [edges[-3]]
    assert press("ArrowRight") == [edges[-2]]
    assert browser.problems() == []


def settled(condition, value):
    """A promise of the value, once the condition holds."""
    return f"new Promise((done) => {{ const look = () => {condition} ? done({value}) : setTimeout(look, 20); look(); }})"


def test_fragmentation_chart_and_map_show_one_moment(browser, page_of):  # noqa: F811
    page = page_of("fragmented")
    keyframes = page.file.data["traces"][0]["devices"][0]["keyframes"]
    times = {keyframe["time_ns"]: keyframe["why"] for keyframe in keyframes}
    browser.open(page.path, "fragmentation")
    canvas = "document.querySelector('[data-view=fragmentation] .stacked-chart canvas')"
    link = ""
    for places in (3, 20, 45):
        browser.evaluate(f"{canvas}.focus(); null")
        browser.press("Home", *["ArrowRight"] * places, "Enter")
        earlier = json.dumps(link)
        link = browser.evaluate(settled(f"location.hash !== {earlier} && /from=\\d/.test(location.hash)", "location.hash"))
        [selected] = re.findall(r"from=(\d+)", link)
        assert int(selected) in times, "the chart selects a moment of the map"
    # A moment of the report moves both, too.
    select = "document.querySelector('[data-view=fragmentation] select[aria-label=Moment]')"
    browser.evaluate(f"{select}.value = 1; {select}.dispatchEvent(new Event('change', {{ bubbles: true }})); null")
    caption = "document.querySelector('.map-caption').textContent"
    assert browser.evaluate(settled(f"{caption}.includes('most unused reserved memory')", caption))
    assert browser.problems() == []


def test_legend_is_sorted_by_bytes(browser, page_of):  # noqa: F811
    factors = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    page = page_of("leak")
    end_ns = page.file.data["traces"][0]["end_ns"]
    for zoom in ("", f"?o.zoom=0-{end_ns // 4}", f"?o.zoom={end_ns // 2}-{end_ns * 3 // 4}"):
        browser.open(page.path, f"timeline{zoom}")
        texts = browser.evaluate("[...document.querySelectorAll('.legend-bytes')].map((each) => each.textContent)")
        sizes = [float(number) * factors[unit] for number, unit in map(str.split, texts)]
        assert len(sizes) > 2 and sizes == sorted(sizes, reverse=True), zoom
        assert ("shown part" in browser.text(".timeline-legend h2")) == bool(zoom)


@pytest.mark.slow("opens every view with every name")
def test_hostile_names_stay_text(browser, page_of):  # noqa: F811
    page = page_of("hostile")
    names = json.loads((page.path.parent / "names.json").read_text())
    html = page.path.read_text(encoding="utf-8")
    assert html.count("<script") == html.count("</script>") == 4 and not re.search("<(img|svg|iframe)", html)
    browser.open(page.path)
    allowed = browser.evaluate("document.querySelectorAll('script, iframe, img, svg, object, embed, link').length")
    assert allowed == 4
    for view in browser.views():
        text = text_of_views(browser, [view])[view]
        if view in ("leaks", "sites"):
            assert names[0] in text
        browser.press("/")
        browser.evaluate(f"document.execCommand('insertText', false, {json.dumps(names[1])})")
        browser.settle()
        browser.evaluate("document.execCommand('selectAll'); document.execCommand('delete')")
        browser.press("Escape")
    for name in names:
        for fragment in (name, f"flame?site={name}&o.mode={name}", f"sites?o.{name}={name}&site=__proto__"):
            browser.open(page.path, fragment)
            assert browser.problems() == [] and browser.evaluate("window.hostile ?? null") is None
    assert browser.evaluate("document.querySelectorAll('script, iframe, img, svg, object, embed, link').length") == allowed


def test_page_can_be_printed(browser, page_of):  # noqa: F811
    browser.open(page_of("leak").path)
    for view in browser.views():
        browser.go_to(view)
        pdf = browser.pdf()
        assert pdf.startswith(b"%PDF") and len(pdf) > 5000, view
    assert browser.problems() == []


def test_printed_charts_are_light_and_fit(browser, page_of):  # noqa: F811
    """Charts are drawn before a page is printed, at the width and in the colours of the print."""
    browser.open(page_of("leak").path, theme="dark")
    for view in ("overview", "timeline", "flame", "leaks", "fragmentation"):
        browser.go_to(view)
        browser.evaluate("dispatchEvent(new Event('beforeprint')); null")
        browser.settle()
        charts = browser.evaluate(f"""
            [...document.querySelectorAll("[data-view={view}] canvas:not(.overlay)")].map((canvas) => {{
                const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                const right = canvas.getBoundingClientRect().right;
                return [right <= document.body.clientWidth, pixels.some((value) => value > 0)];
            }})
        """)
        assert charts and all(fits and is_drawn for fits, is_drawn in charts), view
        assert browser.evaluate("document.documentElement.dataset.theme") == "light"
        browser.evaluate("dispatchEvent(new Event('afterprint')); null")
        assert browser.evaluate("[document.documentElement.dataset.theme, document.body.style.width].join()") == "dark,"
    assert browser.problems() == []


def test_losses_stand_at_top(browser, page_of):  # noqa: F811
    page = page_of("damaged")
    browser.open(page.path)
    messages = [reason["message"] for reason in page.report["traces"][0]["incomplete"]]
    assert messages
    alert = browser.text("main [role=alert]")
    assert all(" ".join(message.split()) in alert for message in messages)
    tops = browser.evaluate("""
        [...document.querySelectorAll("main [data-view]:not([hidden]) > *")].filter((each) => each.checkVisibility())
            .map((each) => [each.getBoundingClientRect().top, each.getAttribute("role")])
    """)
    assert min(tops)[1] == "alert"
    assert "trace incomplete" in browser.text("header")


def test_each_kind_is_named(browser, page_of):  # noqa: F811
    for kind, words in {"killed": "killed", "leak": "exited normally", "damaged": "trace incomplete"}.items():
        browser.open(page_of(kind).path)
        assert words in browser.text("header"), kind
    browser.open(page_of("cuda-train").path)
    assert not re.search(r"\bsteps? in\b", browser.text("header"))
    browser.open(page_of("oom").path)
    assert "oom" in browser.views()


def test_ranks_are_shown_side_by_side(browser, page_of):  # noqa: F811
    page = page_of("ranks")
    browser.open(page.path, "ranks")
    text = browser.text()
    for row in page.report["ranks"]["rows"]:
        assert f"{row['rank']}" in text
        assert bytes_text(row["peak_live_bytes"]) in text and bytes_text(row["end_live_bytes"]) in text
    browser.open(page.path, "leaks?trace=1")
    leak = next(leak for leak in page.report["leaks"] if leak["trace"] == 1)
    assert bytes_text(leak["bytes"]) in browser.text()
