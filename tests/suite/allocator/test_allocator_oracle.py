"""The model of PyTorch's allocator (caching-allocator/), compared with PyTorch's own.

Both serve the same generated requests; every address, segment, failed allocation and deferred free
must be equal. tests/allocator-oracle/README.md describes the two formats.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import DRIVER, RELEASE, VENVS

ORACLE = RELEASE / "allocator-oracle"
PROGRAMS = RELEASE.parent / "allocator-oracle" / "programs"


@pytest.fixture
def oracle(torch_version):
    """Runs a command of the oracle on one PyTorch."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        reason = "not checked: there is no C++ compiler here"
        (pytest.fail if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip)(reason)
    packages = next(Path(VENVS[torch_version]).glob("lib/python3.*/site-packages"))
    wheel = ["--packages", packages, "--programs", PROGRAMS, "--simulated-driver", DRIVER]

    def run(command, *options, code=0):
        where = [] if command == "generate" else wheel
        done = subprocess.run([ORACLE, command, *where, *map(str, options)], capture_output=True, text=True, timeout=300)
        assert done.returncode == code, f"exit code {done.returncode}, not {code}: {done.stdout[-3000:]}{done.stderr[-2000:]}"
        return done.stdout

    return run


def orders_blocks_by_address(torch_version):
    return tuple(map(int, torch_version.split(".")[:2])) < (2, 12)


@pytest.mark.parametrize("seed", [1, 2])
def test_model_equals_native_over_a_million_requests(oracle, torch_version, seed):
    if orders_blocks_by_address(torch_version):
        line = oracle("compare", "--operations", 1_000_000, "--seed", seed)
        assert line.startswith(f"torch {torch_version}: 1000000 requests, ")
        return
    # The model takes the block with the lowest address, PyTorch that of the oldest segment. So only
    # a choice between blocks of one size may differ first.
    differs = oracle("compare", "--operations", 1_000_000, "--seed", seed, code=1)
    model, native = (line.split()[1:] for line in differs.strip().splitlines()[-2:])
    assert model[0] == native[0], differs


def test_native_log_is_reproducible(oracle, tmp_path):
    options = ["--operations", 50_000, "--seed", 3, "--with", "record-stream,empty-cache,fraction,outside,captures"]
    first = oracle("log", *options)
    assert first.count("\n") > 10_000
    requests = tmp_path / "requests"
    requests.write_text(oracle("generate", *options))
    assert oracle("log", "--requests", requests) == first


def test_difference_is_found_and_shown(oracle, tmp_path):
    requests = tmp_path / "requests"
    # The model has no settings yet, so this free block is split by the model only.
    requests.write_text("allocator-requests 1\ncard_bytes 1073741824\nstreams 1\nrequests\n"
                        "s max_split_size_mb:21\na 62914560 0\nf 0\na 41943040 0\nk\n")
    text = oracle("log", "--requests", requests)
    assert text.splitlines()[:2] == ["+ 1 0 62914560 0", "a 0"]
    assert "+ 3 3c00000 41943040 0" in text, text
