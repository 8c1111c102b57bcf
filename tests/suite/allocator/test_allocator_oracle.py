"""The model of PyTorch's allocator (crates/caching-allocator/), compared with PyTorch's own.

Both serve the same generated requests; every address, segment, failed allocation and deferred free
must be equal. tests/allocator-oracle/README.md describes the two formats.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import BUILD, DRIVER, REPOSITORY, TARGET, VENVS
from recorded_requests import requests_of_trace

pytestmark = pytest.mark.every_torch

ORACLE = BUILD / "allocator-oracle"
PROGRAMS = TARGET / "allocator-oracle" / "programs"


#: A folder for each release, from scripts/setup/allocators.
ALLOCATORS = os.environ.get("GPUMEMTRACE_ALLOCATORS")
RELEASES = (REPOSITORY / "tests" / "allocator-oracle" / "releases.txt").read_text().split()


def skip_or_fail(reason):
    (pytest.fail if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip)(f"not checked: {reason}")


def oracle_of(packages):
    """Returns a function that runs a command of the oracle on one PyTorch (a site-packages folder)."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        skip_or_fail("there is no C++ compiler here")
    wheel = ["--packages", packages, "--programs", PROGRAMS, "--simulated-driver", DRIVER]

    def run(command, *options, code=0):
        where = [] if command == "generate" else wheel
        done = subprocess.run([ORACLE, command, *where, *map(str, options)], capture_output=True, text=True, timeout=1200)
        assert done.returncode == code, f"exit code {done.returncode}, not {code}: {done.stdout[-3000:]}{done.stderr[-2000:]}"
        return done.stdout

    return run


@pytest.fixture
def oracle(torch_version):
    return oracle_of(next(Path(VENVS[torch_version]).glob("lib/python3.*/site-packages")))


@pytest.mark.parametrize("seed", [1, 2])
def test_model_equals_native_over_a_million_requests(oracle, torch_version, seed):
    line = oracle("compare", "--operations", 1_000_000, "--seed", seed)
    assert line.startswith(f"torch {torch_version}: 1000000 requests, ")


@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES)
def test_model_equals_each_release_under_every_setting(release):
    """A million requests in all; scripts/nightly compares 100 million."""
    if not ALLOCATORS:
        skip_or_fail("GPUMEMTRACE_ALLOCATORS is not set (scripts/setup/allocators makes its folder)")
    compare_every_setting(oracle_of(Path(ALLOCATORS) / release), release)


def test_model_equals_native_under_every_setting(oracle, torch_version):
    compare_every_setting(oracle, torch_version)


def compare_every_setting(oracle, release):
    lines = oracle("compare-all", "--total", 1_000_000).splitlines()
    counts = [int(re.match(rf"torch {release}: (\d+) requests, ", line)[1]) for line in lines[1::2]]
    assert len(counts) >= 11 and sum(counts) >= 1_000_000


def test_rules_of_another_release_differ(oracle, torch_version):
    """The two order blocks of one size differently. A choice between such blocks differs first."""
    other = "2.9.1" if int(torch_version.split(".")[1]) >= 12 else "2.15.0"
    text = oracle("compare", "--operations", 1_000_000, "--model", other, code=1)
    model, native = (line.split()[1:] for line in text.strip().splitlines()[-2:])
    assert model[0] == native[0] and model != native, text


def test_native_log_is_reproducible(oracle, tmp_path):
    options = ["--operations", 50_000, "--seed", 3, "--with", "record-stream,empty-cache,fraction,outside,captures,release-pools"]
    first = oracle("log", *options)
    assert first.count("\n") > 10_000
    requests = tmp_path / "requests"
    requests.write_text(oracle("generate", *options))
    assert oracle("log", "--requests", requests) == first


def test_settings_reach_the_native_allocator(oracle, tmp_path):
    requests = tmp_path / "requests"
    head = "allocator-requests 1\ncard_bytes 1073741824\nstreams 1\n"
    body = "requests\na 62914560 0\nf 0\na 41943040 0\n"
    requests.write_text(head + body)
    assert oracle("log", "--requests", requests) == "+ 0 0 62914560 0\na 0\na 0\n", "the free block is split"
    requests.write_text(head + "settings max_split_size_mb:21\n" + body)
    assert oracle("log", "--requests", requests) == "+ 0 0 62914560 0\na 0\n+ 2 3c00000 41943040 0\na 3c00000\n"


@pytest.mark.parametrize("model, settings", [("resnet18", ""), ("transformer", "expandable_segments:True")])
def test_recorded_training_is_reproduced(oracle, run_python, tmp_path, torch_version, model, settings):
    """A trace holds all that decides what the allocator does: the oracle repeats every address."""
    run = run_python(torch_version, "training/train.py", "--model", model, "--amp", "--quick-exit",
                     PYTORCH_CUDA_ALLOC_CONF=settings, SIMGPU_MEM="8G")
    text, log = requests_of_trace(run.events(), 8 << 30, settings)
    requests = tmp_path / "requests"
    requests.write_text(text)
    assert len(log) > 500 and log[0].startswith("<" if settings else "+")
    assert oracle("log", "--requests", requests).splitlines() == log
    assert oracle("compare", "--requests", requests).startswith(f"torch {torch_version}: ")


def test_published_growth_of_reserved_memory(oracle, tmp_path, torch_version):
    """https://github.com/pytorch/pytorch/pull/193400: two settings that grow together without end.

    Each cycle keeps 2 MiB, and frees 91 and 45.5 MiB, which no later cycle reuses.
    """
    lines = ["allocator-requests 1", f"card_bytes {16 << 30}", "streams 1",
             "settings max_split_size_mb:128,expandable_segments:True", "requests", f"a {64 << 20} 0"]
    for cycle in range(101):
        lines += [f"a {91 << 20} 0", f"a {91 << 19} 0", f"a {2 << 20} 0", f"f {3 * cycle + 1}", f"f {3 * cycle + 2}"]
        lines += ["k"] if cycle % 20 == 0 else []
    requests = tmp_path / "requests"
    requests.write_text("\n".join(lines) + "\n")
    statistics = [line.split() for line in oracle("log", "--requests", requests).splitlines() if line.startswith("k")]
    assert [int(values[3]) >> 20 for values in statistics] == [220, 2980, 5760, 8520, 11300, 14060]
    assert oracle("compare", "--requests", requests).startswith(f"torch {torch_version}: 512 requests, ")
