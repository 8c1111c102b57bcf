#!/usr/bin/env python3
"""Removes folders and user names from a PyTorch memory snapshot, without running code of it.

usage: scrub.py IN OUT [--root FOLDER]

Rewrites every text of the snapshot: paths keep what follows site-packages/, the standard library
or FOLDER; home folders lose the user's name. Everything else, including shared objects and the
protocol of the pickle, stays. OUT is compressed if its name ends in .gz.
"""

import argparse
import gzip
import io
import json
import pickle
import re
from pathlib import Path

RULES = [
    (re.compile(r"(?:/[^/\s:]+)*/(?:site|dist)-packages/"), "/venv/site-packages/"),
    (re.compile(r"(?:/[^/\s:]+)*/lib/(python3\.\d+)/"), r"/usr/lib/\1/"),
    (re.compile(r"(?:/[^/\s:]+)*/(Python-3\.[\d.]+)/"), r"/usr/src/\1/"),
    (re.compile(r"/(?:home|Users)/[^/\s:]+"), "/home/user"),
    (re.compile(r"^/root(?=/)"), "/home/user"),
]


class DataOnly(pickle.Unpickler):
    """Refuses every class and function, so that nothing of a file runs."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"names {module}.{name}")

    def persistent_load(self, pid):
        raise pickle.UnpicklingError("refers to an object outside")


class Scrubber:
    """Copies values; objects that were shared stay shared, as in the pickles PyTorch writes."""

    def __init__(self, root):
        self.root = root
        self.copies = {}

    def text(self, text):
        if self.root:
            text = text.replace(self.root, "/project")
        for rule, into in RULES:
            text = rule.sub(into, text)
        return text

    def value(self, value):
        if isinstance(value, (int, float, type(None))):
            return value
        known = self.copies.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, str):
            copy = self.text(value)
        elif isinstance(value, dict):
            copy = {self.value(key): self.value(item) for key, item in value.items()}
        else:
            copy = type(value)(self.value(item) for item in value)
        # The original is kept, so that its id stays its own.
        self.copies[id(value)] = value, copy
        return copy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--root", help="a folder to name /project")
    args = parser.parse_args()
    data = args.source.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    is_json = data[:1] == b"{"
    snapshot = json.loads(data) if is_json else DataOnly(io.BytesIO(data)).load()
    clean = Scrubber(args.root and args.root.rstrip("/")).value(snapshot)
    # The second byte of a pickle is its protocol.
    data = json.dumps(clean).encode() if is_json else pickle.dumps(clean, data[1])
    args.target.write_bytes(gzip.compress(data, mtime=0) if args.target.suffix == ".gz" else data)


if __name__ == "__main__":
    main()
