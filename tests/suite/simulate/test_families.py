"""Model families trained under `gpumemtrace simulate`."""

from pathlib import Path

import pytest
from conftest import VENVS, WORKLOADS, dump
from installed_package import TRAINERS
from support.simulated import make_stock_environment, simulate_program

FAMILIES = WORKLOADS / "families"
PROGRAMS = {path.stem: path for path in sorted(FAMILIES.rglob("*.py")) if path.stem != "training"}
LIBRARIES = ("torchvision", "transformers")


def pythonpath(torch_version):
    return ":".join(map(str, [FAMILIES, TRAINERS.get(torch_version, "")]))


def libraries_of(program):
    return [library for library in LIBRARIES if f"import {library}" in program or f"from {library} import" in program]


def has_libraries(torch_version, program):
    return all(torch_version in TRAINERS and (Path(TRAINERS[torch_version]) / library).is_dir() for library in libraries_of(program))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", [pytest.param(name, marks=pytest.mark.long if libraries_of(path.read_text()) else [])
                                    for name, path in PROGRAMS.items()])
def test_family_trains(family, tmp_path):
    """Five steps: forward, backward, and an optimizer where the family has one."""
    program = PROGRAMS[family].read_text()
    # The last of the versions takes the least time to import.
    torch_version = next((version for version in reversed(VENVS) if has_libraries(version, program)), None)
    if torch_version is None:
        pytest.skip("its libraries are not installed: scripts/setup/trainers, GPUMEMTRACE_TRAINERS")
    stock = make_stock_environment(torch_version, tmp_path / "stock")
    printed, _ = simulate_program(tmp_path, stock, program, "--no-report", PYTHONPATH=pythonpath(torch_version))
    assert "loss 0.0" in printed or printed == "done\n", printed
    assert sum(event["kind"] == "block_alloc" for event in dump(tmp_path / "run.trace")) > 150
