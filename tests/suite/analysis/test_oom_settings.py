"""Settings of PyTorch's allocator that a report calls helpful, or not, for an out-of-memory error.

Each program runs out of memory once. Then it runs again with each setting that has a verdict: it
must get over the request if the report says so, and fail as before if it does not. Of the settings
that do not help, two run; GPUMEMTRACE_FULL=1 runs all, with every PyTorch.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import COMMAND, FULL, REPOSITORY, VENVS, WORKLOADS, Run, environment, run_program

#: Programs with their arguments, and the memory of the card.
PROGRAMS = {
    "leak": ("memory/oom.py", ["leak", "w.json"], "512M"),
    "pieces": ("memory/oom.py", ["pieces", "w.json"], "512M"),
    "stream": ("memory/oom.py", ["stream", "w.json"], "512M"),
    "pool": ("memory/oom.py", ["pool", "w.json"], "512M"),
    "small": ("memory/oom.py", ["small", "w.json"], "512M"),
    "growing": ("memory/oom_settings.py", ["growing"], "700M"),
    "oversize": ("memory/oom_settings.py", ["oversize"], "1G"),
    "rounded": ("memory/oom_settings.py", ["rounded"], "1G"),
    "asked": ("memory/oom_settings.py", ["asked"], "1G"),
    "validation": ("memory/oom_growth.py", ["validation"], "2G"),
    "out_of_memory": ("training/allocator_scenarios.py", ["out_of_memory", "native", "--one-thread"], "256M"),
    "leaklab": (REPOSITORY / "scripts/leaklab/train.py", ["retained_validation", "--steps", "400", "--batch", "64"], "1G"),
}
#: All programs with the newest PyTorch; with the others those with settings that help.
RUNS = [(version, name) for version in VENVS for name in PROGRAMS
        if FULL or version == max(VENVS, key=lambda text: [int(part) for part in text.split(".")]) or name in ("growing", "oversize", "rounded")]
#: What the report must say about expandable segments, where that does not depend on the release.
EXPANDABLE = {"pieces": True, "stream": True, "growing": True, "oversize": True, "leak": False, "small": False,
              "pool": None, "asked": None}
#: Settings of the recorded run that are not the defaults.
RECORDED = {"rounded": "roundup_power2_divisions:4"}


def run(folder, torch_version, name, setting):
    """Runs a program with a setting; returns the run."""
    folder.mkdir()
    file, arguments, memory = PROGRAMS[name]
    python = Path(VENVS[torch_version]) / "bin" / "python"
    command = [COMMAND, "run", "--", python, WORKLOADS / file, *arguments]
    env = environment(folder, traced=False, SIMGPU_MEM=memory)
    if setting:
        env["PYTORCH_CUDA_ALLOC_CONF"] = setting
    return Run(run_program(list(map(str, command)), folder, env=env), folder)


def setting_verdicts(oom):
    """Returns the verdict on each setting that a report names."""
    verdicts = {}
    for remedy in oom["remedies"]:
        if remedy["kind"] == "allocator_setting":
            verdicts[remedy["setting"]] = remedy["works"]
        elif remedy["kind"] == "allocator_settings":
            assert remedy["works"] is False
            verdicts |= dict.fromkeys(remedy["settings"], False)
    return verdicts


@pytest.mark.sampled(4)
@pytest.mark.parametrize("version, name", RUNS)
def test_verdicts_are_those_of_real_runs(tmp_path, version, name):
    recorded = run(tmp_path / "recorded", version, name, RECORDED.get(name, ""))
    oom = recorded.report("--oom")["oom"][0]
    verdicts = setting_verdicts(oom)
    assert list(verdicts.values()).count(True) <= 2
    if name in EXPANDABLE:
        assert verdicts["expandable_segments:True"] is EXPANDABLE[name], verdicts
    useless = [setting for setting, works in verdicts.items() if works is False]
    known = {setting: True for setting, works in verdicts.items() if works}
    known |= dict.fromkeys(useless if FULL else useless[:2], False)
    with ThreadPoolExecutor(3) as pool:
        folders = [tmp_path / str(number) for number in range(len(known))]
        runs = list(pool.map(lambda folder, setting: run(folder, version, name, setting), folders, known))
    for (setting, works), again in zip(known.items(), runs):
        ooms = again.report("--oom")["oom"]
        # Equal requests come in the same order, so an equal number of blocks leads to the request.
        is_over = allocations(again) > allocations(recorded)
        assert is_over == works, (setting, works, ooms)
        assert works or ooms, setting


def allocations(run):
    """Returns how many blocks PyTorch allocated before the first error."""
    count = 0
    for event in run.events():
        if event["kind"] == "oom":
            break
        count += event["kind"] == "block_alloc"
    return count
