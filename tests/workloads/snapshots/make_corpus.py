"""Runs every row of the corpus in PyTorch environments on the simulated GPU, recorded by
gpumemtrace too.

usage: make_corpus.py FOLDER LIBRARY VERSION=VENV...

Each run leaves FOLDER/VERSION-ROW/ with what record.py writes, and run.trace of the same run. A
run is passed over if its folder exists. Prints one line per run; exits 1 if one failed.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
SLOW_EVENTS = {"SIMGPU_EVENT_DELAY_US": "300"}
#: Name, arguments of record.py, variables.
ROWS = [
    ("training", ["training", "--forms"], {}),
    ("training-native", ["training", "--stacks", "all"], {}),
    ("training-late", ["training", "--late"], {}),
    ("training-ring", ["training", "--max-entries", "200"], {}),
    ("training-state", ["training", "--enabled", "state"], {}),
    ("training-off", ["training", "--enabled", "off"], {}),
    ("training-expandable", ["training"], EXPANDABLE),
    ("fragments", ["fragments"], {}),
    ("fragments-late", ["fragments", "--late"], {}),
    ("fragments-ring", ["fragments", "--max-entries", "150"], {}),
    ("fragments-expandable", ["fragments"], EXPANDABLE),
    ("fragments-expandable-ring", ["fragments", "--max-entries", "150"], EXPANDABLE),
    ("fragments-rounded", ["fragments"], {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"}),
    ("fragments-unsplit", ["fragments"], {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:21"}),
    ("fragments-skipped", ["fragments", "--skip", "free_requested"], {}),
    ("pools", ["pools"], {}),
    ("pools-ring", ["pools", "--max-entries", "60"], {}),
    ("pools-expandable", ["pools"], EXPANDABLE),
    ("pending", ["pending"], SLOW_EVENTS),
    ("pending-never", ["pending"], {"SIMGPU_EVENT_DELAY_US": "60000000"}),
    ("pending-ring", ["pending", "--max-entries", "50"], SLOW_EVENTS),
    ("pending-expandable", ["pending"], SLOW_EVENTS | EXPANDABLE),
    ("oom", ["oom"], {"SIMGPU_MEM": "512M"}),
    ("oom-expandable", ["oom"], EXPANDABLE | {"SIMGPU_MEM": "512M"}),
    ("devices", ["devices"], {"SIMGPU_DEVICES": "2"}),
    ("devices-ring", ["devices", "--max-entries", "300"], {"SIMGPU_DEVICES": "2"}),
    ("annotations", ["annotations"], {}),
    ("pinned", ["pinned"], {}),
]


def run(folder, library, venv, arguments, variables):
    folder.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GPUMEMTRACE_", "SIMGPU_", "PYTORCH_", "LD_"))}
    env |= {"LD_PRELOAD": str(library)} | variables
    scenario, *options = arguments
    command = [Path(venv).absolute() / "bin" / "python", Path(__file__).absolute().parent / "record.py", scenario, ".", *options]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)


def main():
    target, library, *venvs = sys.argv[1:]
    work = [(Path(target) / f"{version}-{name}", Path(library).resolve(), venv, arguments, variables)
            for version, _, venv in (text.partition("=") for text in venvs) for name, arguments, variables in ROWS
            if not (Path(target) / f"{version}-{name}").exists()]
    failed = 0
    with ThreadPoolExecutor(2) as pool:
        for job, done in zip(work, pool.map(lambda job: run(*job), work)):
            lines = done.stderr.strip().splitlines()
            print(job[0].name, "ok" if done.returncode == 0 else f"failed ({done.returncode}): {' '.join(lines[-3:])}", flush=True)
            failed += done.returncode != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
