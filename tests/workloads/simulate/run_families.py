"""Runs the model families side by side, each recorded and with PyTorch's history.

usage: run_families.py FOLDER [--jobs N] [--only NAME]... [--library SO] [--settings]

FOLDER gets NAME.json.gz (observed_run.py) and NAME.trace for each. With --settings, each family
also runs once per allocator setting, unrecorded, and its statistics go to NAME.SETTING.json.gz.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
FAMILIES = HERE.parent / "families"
SETTINGS = {"expandable": "expandable_segments:True", "split": "max_split_size_mb:20", "roundup": "roundup_power2_divisions:4"}


def run(job):
    folder, program, label, setting, library, patience = job
    name = program.stem
    stem = folder / (f"{name}.{label}" if label else name)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("GPUMEMTRACE_", "PYTORCH_", "LD_PRELOAD"))}
    env |= {"OMP_NUM_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1", "TRITON_CACHE_DIR": str(folder / "triton"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(FAMILIES), os.environ.get("PYTHONPATH")]))}
    if setting:
        env["PYTORCH_ALLOC_CONF"] = setting
    elif library:
        env |= {"LD_PRELOAD": str(library), "GPUMEMTRACE_OUTPUT": f"{stem}.trace"}
    began = time.monotonic()
    with open(f"{stem}.log", "w", encoding="utf-8") as log:
        try:
            command = [sys.executable, HERE / "observed_run.py", f"{stem}.json.gz", program]
            code = subprocess.run(command, env=env, stdout=log, stderr=log, timeout=patience).returncode
        except subprocess.TimeoutExpired:
            code = "timed out"
    print(f"{time.monotonic() - began:6.1f} s  {code}  {name} {label}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--library", type=Path)
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--patience", type=float, default=600)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    programs = sorted(path for path in FAMILIES.rglob("*.py") if path.stem != "training")
    programs = [path for path in programs if not args.only or path.stem in args.only]
    jobs = [(args.folder.resolve(), path, "", "", args.library and args.library.resolve(), args.patience) for path in programs]
    if args.settings:
        jobs += [(args.folder.resolve(), path, label, setting, None, args.patience) for label, setting in SETTINGS.items() for path in programs]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(run, jobs))


if __name__ == "__main__":
    main()
