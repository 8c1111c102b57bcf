"""The command line of `scripts/soak`."""

import argparse
import json
import sys

from . import campaign, load, mutations
from .hosts import BY_NAME, Programs


def main(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--kills", type=int, metavar="N", help="kill programs N times")
    what.add_argument("--minutes", type=float, metavar="M", help="run programs for M minutes and watch their growth")
    what.add_argument("--traces", type=int, metavar="N", help="change N trace files and read each with every command")
    what.add_argument("--round", type=int, metavar="N", help="only round N of --kills")
    parser.add_argument("--seed", type=int, default=1, help="decides moments and changes (default 1)")
    parser.add_argument("--jobs", type=int, default=2, help="rounds at once (default 2)")
    parser.add_argument("--host", action="append", choices=sorted(BY_NAME), help="only this host (may be repeated)")
    parser.add_argument("--log", metavar="FILE", help="gets a line per kill, then the summary")
    parser.add_argument("--result", metavar="FILE", help="gets the sums as JSON")
    parser.add_argument("--python", metavar="PATH", help="a Python with PyTorch on the simulated GPU; made in target/ if missing")
    parser.add_argument("--no-build", action="store_true", help="use target/release as it is")
    options = parser.parse_args()
    programs = Programs(options.python)
    programs.build(cargo=not options.no_build)
    check = load if options.minutes else mutations if options.traces else campaign
    code, result = check.run(programs, options)
    if options.result:
        with open(options.result, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    if code:
        print(f"soak: {result['failed']} failures; the files are in target/soak/failures", file=sys.stderr)
    return code
