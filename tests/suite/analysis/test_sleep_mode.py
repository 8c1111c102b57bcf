"""Memory that a program returned while PyTorch counts it: the sleep mode of vLLM and SGLang."""

import json
import os
import shutil
import subprocess

import pytest

from conftest import COMMAND, REPOSITORY, environment, gpumemtrace, python_of, sentences

MIB = 1 << 20
WORKLOADS = REPOSITORY / "tests" / "workloads" / "memory"
WEIGHTS, CACHE = 800 * MIB, 1024 * MIB


@pytest.fixture(scope="module")
def allocator(tmp_path_factory):
    library = tmp_path_factory.mktemp("allocator") / "sleep_allocator.so"
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        reason = "not checked: there is no C compiler here"
        (pytest.fail if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip)(reason)
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, WORKLOADS / "sleep_allocator.c", "-ldl"], check=True)
    return library


def run(folder, torch_version, card, program, *arguments):
    """Records a program on a card of so many bytes; returns its exit code."""
    command = [COMMAND, "run", "-o", folder / "run.trace", "--", python_of(torch_version), WORKLOADS / program, *arguments]
    env = environment(folder, traced=False, SIMGPU_MEM=card)
    return subprocess.run(list(map(str, command)), cwd=folder, env=env, capture_output=True, text=True, timeout=300).returncode


def smallest_and_too_small(trace):
    rows = json.loads(gpumemtrace("fit", trace, "--json"))["rows"]
    smallest, too_small = [row for row in rows if row["setting"] == ""]
    assert smallest["card_bytes"] - too_small["card_bytes"] == 2 * MIB
    return smallest, too_small


def test_report_has_what_pytorch_counts_and_what_has_memory(allocator, torch_version, tmp_path):
    assert run(tmp_path, torch_version, 1100 * MIB, "sleep_mode.py", allocator) == 0
    report = json.loads(gpumemtrace("replay", tmp_path / "run.trace", "--json"))
    [device] = report["devices"]
    assert device["peak"]["live_bytes"] == WEIGHTS + CACHE
    assert device["sleep"] == {"most_asleep_bytes": WEIGHTS, "most_asleep_reserved_bytes": WEIGHTS, "peak_backed_bytes": CACHE,
                               "peak_backed_reserved_bytes": CACHE + 2 * MIB, "end_backed_bytes": 0}
    full = [verdict["evidence"] for verdict in report["verdicts"] if verdict["kind"] == "high_pressure"]
    assert [(evidence["live_bytes"], evidence["share"] < 1) for evidence in full] == [(CACHE, True)]
    text = sentences(gpumemtrace("replay", tmp_path / "run.trace"))
    assert "as PyTorch counts it" in text and "up to 800.00 MiB unmapped (sleep mode)" in text and "166%" not in text


def test_fit_counts_memory_that_sleeps_once(allocator, torch_version, tmp_path):
    assert run(tmp_path, torch_version, 4096 * MIB, "sleep_mode.py", allocator) == 0
    smallest, too_small = smallest_and_too_small(tmp_path / "run.trace")
    assert run(tmp_path, torch_version, smallest["card_bytes"], "sleep_mode.py", allocator) == 0
    assert run(tmp_path, torch_version, too_small["card_bytes"], "sleep_mode.py", allocator) == 1


def test_pool_that_is_freed_does_not_sleep(allocator, torch_version, tmp_path):
    assert run(tmp_path, torch_version, 1100 * MIB, "sleep_mode.py", allocator, "--frees-pool") == 0
    [device] = json.loads(gpumemtrace("replay", tmp_path / "run.trace", "--json"))["devices"]
    assert device["sleep"] is None


def test_fit_counts_what_libraries_take_after_the_peak(torch_version, tmp_path):
    assert run(tmp_path, torch_version, 4096 * MIB, "library_after_peak.py") == 0
    smallest, too_small = smallest_and_too_small(tmp_path / "run.trace")
    assert too_small["first_failure"]["what"] == "library" and too_small["first_failure"]["request_bytes"] == 64 * MIB
    text = sentences(gpumemtrace("fit", tmp_path / "run.trace"))
    assert "64.00 MiB requested outside PyTorch at" in text and "library_after_peak.py:16" in text
    assert run(tmp_path, torch_version, smallest["card_bytes"], "library_after_peak.py") == 0
    assert run(tmp_path, torch_version, too_small["card_bytes"], "library_after_peak.py") == 1
