"""Prints docs/coverage-matrix.md from pytest's JUnit files for test_allocator_matrix.py. If a cell
is in several files, the last one counts.
"""

import re
import sys
import xml.etree.ElementTree as ET

HEAD = """# Coverage matrix

This page shows which versions and settings of PyTorch are recorded completely.
`scripts/checks/matrix` writes it: it runs real PyTorch wheels on the simulated GPU in every cell.

Per device, the trace must have the same entries in the same order as PyTorch's history
(`_snapshot()['device_traces']`: action, address, size, stream, and pool where PyTorch reports it).
Per thread, it must have every memory call of the driver's log (function, address, size, result).

A cell is the number of `entries / calls` compared without a difference, or **failed**. Without its
own cache (cudaMallocAsync, no caching) PyTorch keeps no history, and only the driver's log is
compared. Version 2.1 has no tracker: only addresses of allocations and free requests are compared.
MemPools exist since 2.5. CUDA refuses a capture without the cache; the failed calls are compared.

| row | workload |
|---|---|
| mlp, resnet18, transformer | three training steps with Adam |
| pools | a MemPool, two side streams, `record_stream` with frees that wait for events |
| graph | two CUDA graphs with one private pool, replayed and dropped |
| oom | out of memory four times; the program continues |
| devices | two devices, one thread each |
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
