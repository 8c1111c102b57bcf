"""A frame belongs to the module that was loaded when it was captured."""

import re

from conftest import gpumemtrace, parse_fields
from route_programs import MIB, ROUTES, place  # noqa: F401 (fixture)


def test_frames_of_an_unloaded_plugin_keep_its_name(place):  # noqa: F811
    for name, size in (("a", 1), ("b", 2)):
        place.compile(f"plugin_{name}.so", ROUTES / "plugin.c", f"-DSIZE={size}", "-l:libcuda.so.1")
    done = place.run(place.program("unloads", "-l:libcuda.so.1"), GPUMEMTRACE_STACKS="both")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "same address\n", "the loader uses the address again"
    nodes = {}
    for line in gpumemtrace("dump", "--stacks", place.folder / "run.trace").splitlines():
        if line.startswith("native "):
            node = parse_fields(line)
            nodes[node["id"]] = (node["parent"], node["module"])
    owners = {1: set(), 2: set()}
    for event in place.events():
        if event["kind"] == "device_alloc":
            node, modules = str(event["native"]), []
            while node in nodes:
                node, module = nodes[node]
                modules += re.findall(r"plugin_[ab]\.so", module)
            owners[event["size"] // MIB].update(modules)
    assert owners == {1: {"plugin_a.so"}, 2: {"plugin_b.so"}}
