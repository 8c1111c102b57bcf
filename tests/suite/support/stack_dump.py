"""Parses the frames that `gpumemtrace dump --stacks` prints."""

import json
import re

from conftest import gpumemtrace

#: name=value; a value with spaces or quotes is a JSON string.
FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


def stacks(trace):
    """Returns a function from node id to [(file, line, function), ...], innermost first.

    Between Python code that a backward node runs and its forward line is a frame without names.
    """
    return _stacks(trace, "frame", lambda fields: (fields["file"], int(fields["line"].replace("?", "0")), fields["function"]))


def native_stacks(trace):
    """Returns a function from native node id to [(module, offset), ...], innermost first."""
    return _stacks(trace, "native", lambda fields: (fields.get("module"), fields.get("offset")))


def _stacks(trace, kind, frame_of):
    frames = {}
    for line in gpumemtrace("dump", trace, "--stacks").splitlines():
        if line.startswith(f"{kind} "):
            fields = {key: json.loads(text) if text.startswith('"') else text for key, text in FIELD.findall(line)}
            frames[int(fields["id"])] = (int(fields["parent"]), frame_of(fields), int(fields.get("forward", 0)))

    def stack(node):
        out = []
        while node:
            node, frame, forward = frames[node]
            # Python code inside a backward node: its own frames, then the node's forward line.
            if forward:
                return out + stack(node) + stack(forward)
            out.append(frame)
        return out

    return stack
