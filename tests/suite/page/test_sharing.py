"""What the overview gives to issues and chats: Markdown and a picture. Names in it are hostile."""

import base64
import json
import re
import struct
import zlib

import pytest

from browser import browser  # noqa: F401 (fixture)
from page_runs import bytes_text, page_of  # noqa: F401 (fixture)

#: GitHub's limit for the text of an issue.
MAX_ISSUE = 65_536
COPY = "[...document.querySelectorAll('.overview-actions button')].find((each) => each.textContent === 'Copy as Markdown')"


def copied_markdown(browser):  # noqa: F811
    """Clicks the button, and returns what it writes to the clipboard."""
    browser.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }; null")
    browser.evaluate(f"{COPY}.click(); null")
    text = browser.evaluate("new Promise((done) => setTimeout(() => done(window.copied), 50))")
    assert browser.evaluate("document.querySelector('.overview-actions button').textContent") == "Copied"
    return text


def without_code(text):
    """Removes code quotes by CommonMark's rule: as many backticks end them as begin them."""
    return re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "CODE", text)


@pytest.mark.parametrize("kind", ["leak", "oom", "ranks", "damaged", "phases"])
def test_markdown_has_findings_and_numbers_of_report(browser, page_of, kind):  # noqa: F811
    page = page_of(kind)
    browser.open(page.path)
    text = copied_markdown(browser)
    assert len(text) < MAX_ISSUE
    trace = page.file.data["first_trace"]
    [info] = [device for device in page.report["devices"] if device["trace"] == trace]
    for name in ("live_bytes", "reserved_bytes", "device_bytes"):
        assert f"| {bytes_text(info['peak'][name])} |" in text
    for finding in browser.evaluate("[...document.querySelectorAll('.finding h2')].map((each) => each.textContent)"):
        assert text.count(finding) == 1
    assert browser.evaluate("document.querySelector('header .program').textContent") in text
    for loss in page.report["traces"][trace]["incomplete"]:
        assert loss["message"] in text
    [peak] = [one for one in page.report["peak"] if one["trace"] == trace]
    for row in peak["sites"][:8]:
        assert f"| {bytes_text(row['bytes'])} |" in text
    assert browser.problems() == []


@pytest.mark.parametrize("kind", ["leak", "hostile", "damaged"])
def test_markdown_has_names_in_code_quotes_only(browser, page_of, kind):  # noqa: F811
    page = page_of(kind)
    browser.open(page.path)
    text = copied_markdown(browser)
    assert len(text) < MAX_ISSUE
    rows = text.splitlines()
    columns = 0
    for row in rows:
        # A share below 1% is no tag.
        rest = without_code(row).replace("<1%", "1%").replace(">99%", "99%")
        assert not re.search(r"[`<>\[\]@#\\&_~]|\*\*\*|//|www\.|javascript|[^\x20-\x7e]", rest), row
        if rest.startswith("|"):
            columns = columns or rest.count("|")
            # A cell has no pipe of its own.
            assert row.count("|") == rest.count("|") == columns, row
        else:
            columns = 0
            assert rest == "" or re.match(r"(gpumemtrace |- \*\*|  - CODE$)", rest) or rest.startswith("Left out"), row
    if kind == "hostile":
        assert "octocat" in text, "the trace has such names"


def test_refused_clipboard_shows_the_text(browser, page_of):  # noqa: F811
    browser.open(page_of("leak").path)
    browser.evaluate("navigator.clipboard.writeText = async () => { throw new Error('not allowed'); }; null")
    browser.evaluate("document.execCommand = () => false; null")
    assert browser.evaluate("document.querySelector('.overview-actions pre').hidden")
    browser.evaluate(f"{COPY}.click(); null")
    browser.evaluate("new Promise((done) => setTimeout(done, 50)).then(() => null)")
    shown = browser.evaluate("document.querySelector('.overview-actions pre').textContent")
    assert shown == page_of("leak").file.data["cards"][0]["markdown"]
    assert "select the text" in browser.text(".overview-actions")
    assert browser.problems() == []


def downloaded(browser, click):  # noqa: F811
    """Clicks, and returns the name and the bytes of the download."""
    browser.evaluate("""
        window.files = [];
        HTMLAnchorElement.prototype.click = function () {
            fetch; // The policy forbids requests, so the bytes come from the blob itself.
            window.files.push([this.download, window.blob]);
        };
        const make = URL.createObjectURL;
        URL.createObjectURL = (blob) => { window.blob = blob; return make(blob); };
        null
    """)
    browser.evaluate(f"{click}.click(); null")
    name, content = browser.evaluate("""new Promise((done) => {
        const look = async () => {
            if (window.files.length === 0) return setTimeout(look, 20);
            const [name, blob] = window.files[0];
            const bytes = new Uint8Array(await blob.arrayBuffer());
            let text = "";
            for (const byte of bytes) text += String.fromCharCode(byte);
            done([name, btoa(text)]);
        };
        look();
    })""")
    return name, base64.b64decode(content)


def read_png(data):
    """Returns width, height and the colours of the pixels of an RGBA picture."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    position, packed, size = 8, b"", None
    while position < len(data):
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        body = data[position + 8 : position + 8 + length]
        assert struct.unpack(">I", data[position + 8 + length :][:4])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            size = struct.unpack(">IIBBBBB", body)
        packed += body if kind == b"IDAT" else b""
        position += 12 + length
    width, height, depth, color, *_ = size
    assert (depth, color) in ((8, 6), (8, 2))
    step = 4 if color == 6 else 3
    rows, stride = zlib.decompress(packed), width * step
    previous, pixels = bytearray(stride), []
    for row in range(height):
        start = row * (stride + 1)
        line = bytearray(rows[start + 1 : start + 1 + stride])
        unfilter(rows[start], line, previous, step)
        pixels.append(bytes(line))
        previous = line
    return width, height, [{line[at : at + 3] for at in range(0, stride, step)} for line in pixels]


def unfilter(kind, line, previous, step):
    """Undoes a filter of PNG in place."""
    for at in range(len(line)):
        left = line[at - step] if at >= step else 0
        above = previous[at]
        corner = previous[at - step] if at >= step else 0
        guess = left + above - corner
        nearest = min((left, above, corner), key=lambda value: abs(guess - value))
        line[at] = (line[at] + (0, left, above, (left + above) // 2, nearest)[kind]) & 255


PNG = "[...document.querySelectorAll('.preview button')].find((each) => each.textContent === 'PNG')"


def test_picture_has_chart_and_legend(browser, page_of):  # noqa: F811
    browser.open(page_of("leak").path)
    name, data = downloaded(browser, PNG)
    assert name == "run-memory.png"
    width, height, rows = read_png(data)
    assert width >= 1600 and height >= 700
    swatch = "document.querySelector('[data-view=overview] table.largest .bar').style.background"
    color = bytes(map(int, re.findall(r"\d+", browser.evaluate(swatch))))
    # The largest call site is in the chart, and below it in the legend.
    legend = [index for index, colors in enumerate(rows) if index > 0.65 * height and color in colors]
    assert legend and any(color in colors for colors in rows[: height // 2])
    assert browser.problems() == []


def test_name_of_picture_is_safe(browser, page_of):  # noqa: F811
    browser.open(page_of("hostile").path)
    name, _ = downloaded(browser, PNG)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*-memory\.png", name)
    assert json.dumps(name)[1:-1] == name
    assert browser.problems() == []
