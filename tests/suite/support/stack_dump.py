"""Parses the frames that `gpumemtrace dump --stacks` prints."""

import json
import re

from conftest import gpumemtrace

#: name=value; a value with spaces or quotes is a JSON string.
FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


def stacks(trace):
    """Returns a function from node id to [(file, line, function), ...], innermost first."""
    frames = {}
    for line in gpumemtrace("dump", trace, "--stacks").splitlines():
        if line.startswith("frame "):
            fields = {key: json.loads(text) if text.startswith('"') else text for key, text in FIELD.findall(line)}
            frames[int(fields["id"])] = (int(fields["parent"]), (fields["file"], int(fields["line"].replace("?", "0")), fields["function"]))

    def stack(node):
        out = []
        while node:
            node, frame = frames[node]
            out.append(frame)
        return out

    return stack
