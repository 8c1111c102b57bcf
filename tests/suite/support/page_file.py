"""Reads the blobs of a page without its JavaScript: a second reader of what page_data.ts describes."""

import base64
import json
import re
import zlib


class PageFile:
    """A page: the bytes of its report, its data, and its columns of numbers."""

    def __init__(self, path):
        text = path.read_text(encoding="utf-8")
        blobs = re.findall(r'<script type="application/octet-stream" id="(\w+)">([^<]*)</script>', text)
        inflated = {name: zlib.decompress(base64.b64decode(blob), wbits=-15) for name, blob in blobs}
        self.report_bytes = inflated["report"]
        self.data = json.loads(inflated["data"])
        self.columns = read_columns(inflated["columns"])

    def column(self, number):
        return self.columns[number]


def read_columns(data):
    """Decodes columns: a LEB128 count, then one zigzag LEB128 difference per value."""
    columns, position = [], 0

    def number():
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while position < len(data):
        values, value = [], 0
        for _ in range(number()):
            difference = number()
            value += -(difference >> 1) - 1 if difference & 1 else difference >> 1
            values.append(value)
        columns.append(values)
    return columns
