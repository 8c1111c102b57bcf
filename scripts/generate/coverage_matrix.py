"""docs/coverage-matrix.md from what pytest wrote about the cells of tests/suite/capture/test_allocator_matrix.py, in one file or several: of a cell
that is in more than one, the last counts.
"""

import re
import sys
import xml.etree.ElementTree as ET

HEAD = """# Coverage matrix

Written by `scripts/matrix`, which runs PyTorch on the simulated GPU in every cell: real wheels, real allocator. In a cell, the
trace held the entries of PyTorch's own history (`_snapshot()['device_traces']`: action, address, size, stream, and pool where it
tells it), one for one and in order, device by device; and every memory call of the driver's log (function, address, size, result),
thread by thread.

A cell is `entries / calls` that were compared without a difference; **failed** where there was one. PyTorch keeps no history
without its own cache (cudaMallocAsync, no caching): the driver's log alone is the witness there. Version 2.1 has no tracker: only
the addresses of what is handed out and requested back are compared. MemPools exist since 2.5. A capture without the cache fails, as
CUDA has it; its failed calls are compared.

| row | what it does |
|---|---|
| mlp, resnet18, transformer | three steps of training with Adam |
| pools | a MemPool, two side streams, `record_stream` with frees that wait for events |
| graph | two CUDA graphs with one private pool, replayed and dropped |
| oom | out of memory four times, and on |
| devices | two devices, a thread each |
| pinned | page-locked memory and copies from it |
"""


def main():
    cells, versions, configurations, rows = {}, [], [], []
    for case in (case for file in sys.argv[1:] for case in ET.parse(file).iter("testcase")):
        version, configuration, row = re.fullmatch(r"test_trace_equals_history_and_driver_log\[([^-]*)-([^-]*)-([^-]*)\]", case.get("name")).groups()
        numbers = {prop.get("name"): prop.get("value") for prop in case.iter("property")}
        passed = case.find("failure") is None and case.find("error") is None
        cells[version, configuration, row] = f"{numbers['entries']} / {numbers['calls']}" if passed else "**failed**"
        for value, values in ((version, versions), (configuration, configurations), (row, rows)):
            if value not in values:
                values.append(value)
    print(HEAD)
    failed = sum(cell == "**failed**" for cell in cells.values())
    print(f"{len(cells)} cells, {failed} with a difference.\n")
    print("| torch | allocator | " + " | ".join(rows) + " |")
    print("|---" * (len(rows) + 2) + "|")
    for version in versions:
        for configuration in configurations:
            values = [cells.get((version, configuration, row), "") for row in rows]
            print(f"| {version} | {configuration.replace('_', ' ')} | " + " | ".join(values) + " |")


if __name__ == "__main__":
    main()
