"""Runs workload.c inside Python, for recorders that need it: LIBRARY and main's arguments."""

import ctypes
import sys

library, tally, pairs, pairs_per_stack, driver = sys.argv[1:]
workload = ctypes.CDLL(library).run_workload
workload.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint, ctypes.c_char_p]


def main():
    return workload(tally.encode(), int(pairs), int(pairs_per_stack), driver.encode())


sys.exit(main())
