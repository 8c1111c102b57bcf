"""Drives pages in Chromium, through replay-cli/web/test/browser/inspect.mjs."""

import base64
import json
import os
import select
import shutil
import subprocess

import pytest

from conftest import REPOSITORY

WEB = REPOSITORY / "replay-cli" / "web"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
TIMEOUT_S = 120


def missing_tool():
    """Returns what the browser tests lack here, or None."""
    if not os.access(CHROMIUM, os.X_OK):
        return "no Chromium (Debian's package chromium, or set CHROMIUM)"
    if not shutil.which("node"):
        return "no node"
    if not (WEB / "node_modules" / "puppeteer-core").is_dir():
        return "puppeteer-core is not installed: scripts/generate/page installs it"
    return None


class Browser:
    """One Chromium with one page at a time."""

    def __init__(self):
        self.process = subprocess.Popen(["node", WEB / "test" / "browser" / "inspect.mjs"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def do(self, what, **arguments):
        """Runs one command of inspect.mjs and returns its result."""
        self.process.stdin.write(json.dumps({"do": what} | arguments).encode() + b"\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
        assert ready, f"no answer to {what} in {TIMEOUT_S} s"
        line = self.process.stdout.readline()
        assert line, f"the browser ended at {what}"
        answer = json.loads(line)
        assert "error" not in answer, f"{what} {str(arguments)[:300]}: {answer['error']}"
        return answer["result"]

    def open(self, page, fragment="", theme="light", width=1280, height=800):
        self.do("open", page=str(page), fragment=fragment, theme=theme, width=width, height=height)

    def evaluate(self, expression):
        return self.do("evaluate", expression=expression)

    def call(self, function, *arguments):
        """Calls a function of `window.gpumemtrace`."""
        return self.evaluate(f"window.gpumemtrace.{function}({', '.join(map(json.dumps, arguments))})")

    def press(self, *keys):
        self.do("press", keys=keys)

    def click(self, selector):
        self.do("click", selector=selector)

    def set_theme(self, theme):
        self.do("theme", theme=theme)

    def screenshot(self, path):
        self.do("screenshot", path=str(path))

    def pdf(self):
        return base64.b64decode(self.do("pdf"))

    def problems(self):
        """Returns console messages, errors, policy violations, dialogs and foreign requests."""
        return self.do("problems")

    def axe_violations(self):
        return self.do("axe")

    def view(self):
        """Returns the name of the shown view."""
        return self.evaluate("document.querySelector('main [data-view]:not([hidden])').dataset.view")

    def views(self):
        """Returns the names of all views that the page offers, in the order of their tabs."""
        return self.evaluate("[...document.querySelectorAll('main [data-view]')].map((view) => view.dataset.view)")

    def go_to(self, fragment):
        """Changes the URL's fragment, as a link does."""
        self.evaluate(f"location.hash = {json.dumps(fragment)}; null")
        self.settle()

    def settle(self):
        self.do("settle")

    def text(self, selector="main [data-view]:not([hidden])"):
        """Returns the visible text of an element in one line, after opening all `details` in it."""
        self.evaluate(f"document.querySelectorAll({json.dumps(selector + ' details')}).forEach((each) => {{ each.open = true; }})")
        self.settle()
        text = self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return " ".join(text.split())


@pytest.fixture(scope="session")
def browser():
    reason = missing_tool()
    if reason:
        pytest.fail(reason) if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip(reason)
    browser = Browser()
    yield browser
    browser.close()
