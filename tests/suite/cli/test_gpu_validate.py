"""Rehearses scripts/gpu-validate on the simulated GPU, where it must find planted faults."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import COMMAND, LIBRARY, REPOSITORY, VENVS, environment

SCRIPT = REPOSITORY / "scripts" / "gpu-validate"

#: Checks that the simulated GPU can run but not decide.
BLIND = ["device_memory: context", "addresses", "capture, queries", "libraries", "libraries, NCCL, 2 processes", "overhead"]


def validate(folder, torch_version, *arguments, code=0, library=LIBRARY, command=COMMAND):
    """Returns its result rows as {name: (verdict, detail)}, and the whole text."""
    output = folder / "result.md"
    python = Path(VENVS[torch_version]) / "bin" / "python"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--quick", "--python", python, "--library", library, "--command", command,
         "--output", output, *arguments],
        cwd=folder, env=environment(folder, traced=False, SIMGPU_LOG=""), capture_output=True, text=True, timeout=600,
    )
    assert done.returncode == code, done.stdout + done.stderr
    text = output.read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ", 2) for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")]
    return {row[0]: tuple(row[1:]) for row in rows if len(row) == 3}, text


@pytest.mark.long
def test_rehearsal_finds_no_difference_and_lists_untried_checks(torch_version, tmp_path):
    rows, text = validate(tmp_path, torch_version)
    assert text.startswith("# Validation on a SIMULATED GPU") and "Nothing below was measured on a GPU" in text
    assert "**DIFFERENT**" not in text and "Not finished" not in text
    for name in BLIND:
        assert rows[name][0] == "not possible here", rows[name]
    for name in ("cupy", "jax", "triton"):
        assert rows[name][0] == "not possible here" and "No module named" in rows[name][1], rows[name]
    others = {name: row[0] for name, row in rows.items() if name not in [*BLIND, "check", "cupy", "jax", "triton"]}
    assert len(others) == 11 and set(others.values()) == {"equal"}, others


def test_library_that_records_nothing_is_detected(torch_version, tmp_path):
    other = next(path for path in map(Path, ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6"])
                if path.exists())
    impostor = tmp_path / "libgpumemtrace.so"
    shutil.copy(other, impostor)
    rows, _ = validate(tmp_path, torch_version, "--only", "addresses,kill", code=3, library=impostor)
    assert [rows[name][0] for name in ("addresses", "kill")] == ["**DIFFERENT**"] * 2, rows
    assert "no trace was written" in rows["kill"][1]


def test_one_missing_event_is_detected(torch_version, tmp_path):
    """A command that withholds one line stands for a recorder that missed a call."""
    for kind, name, says in (("block_free", "capture, CUDA graph", "running total"), ("map", "expandable", "mapped bytes")):
        command = tmp_path / "gpumemtrace"
        command.write_text(f"""#!/usr/bin/env bash
set -o pipefail
{COMMAND} "$@" | sed '0,/ kind={kind} /{{/ kind={kind} /d}}'
""")
        command.chmod(0o755)
        rows, _ = validate(tmp_path, torch_version, "--only", name.split(",")[0], code=3, command=command)
        assert rows[name][0] == "**DIFFERENT**" and says in rows[name][1], rows


def test_simulated_result_needs_explicit_output(torch_version, tmp_path):
    """Uses a copy of the script, because the default output lies beside its folder."""
    script = tmp_path / "scripts" / "gpu-validate"
    script.parent.mkdir()
    shutil.copy(SCRIPT, script)
    shutil.copytree(SCRIPT.parent / "checks" / "gpu_validate", script.parent / "checks" / "gpu_validate")
    done = subprocess.run([sys.executable, script, "--python", Path(VENVS[torch_version]) / "bin" / "python", "--library", LIBRARY,
                           "--command", COMMAND, "--only", "doctor"],
                          env=environment(tmp_path, traced=False, SIMGPU_LOG="", SIMGPU_NAME="NVIDIA H200"),
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "SIMULATED" in done.stderr, done.stdout + done.stderr
    assert os.listdir(tmp_path) == ["scripts"]
