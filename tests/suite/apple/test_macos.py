"""macOS support that can be tested on Linux: the wheel, and the package in a Python that claims
macOS.

Oracles: pip decides which wheel fits a Mac; zig built the samples for the systems they name.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
import zlib

import pytest

from conftest import DRIVER, LIBRARY, REPOSITORY, dump, environment, gpumemtrace
from installed_package import build_distribution

PACKAGE = REPOSITORY / "python" / "gpumemtrace"


def sample(name):
    """Returns a Mach-O program that scripts/generate/macho-samples built."""
    return zlib.decompress((REPOSITORY / "tests" / "golden" / "macho" / f"{name}.zlib").read_bytes())


def prebuilt(folder, library, command):
    folder.mkdir()
    (folder / "libgpumemtrace.dylib").write_bytes(library)
    (folder / "gpumemtrace").write_bytes(command)
    (folder / "gpumemtrace").chmod(0o755)
    return folder


@pytest.fixture
def wheel_of(tmp_path):
    def make(library, command):
        (tmp_path / "wheel").mkdir()
        return build_distribution("wheel", tmp_path / "wheel", prebuilt=prebuilt(tmp_path / "built", library, command))

    return make


def takes(wheel, platform):
    """Returns whether pip would install the wheel on that platform."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps",
               "--only-binary=:all:", "--python-version=3.12", f"--platform={platform}", f"--find-links={wheel.parent}",
               f"--dest={wheel.parent / platform}", "gpumemtrace"]
    return subprocess.run(command, capture_output=True, timeout=120).returncode == 0


@pytest.mark.parametrize("newest, tag", [("plain", "macosx_11_0_arm64"), ("for-macos-14", "macosx_15_0_arm64")])
def test_wheel_tag_matches_minimum_macos_of_its_files(wheel_of, newest, tag):
    wheel = wheel_of(sample("plain"), sample(newest))
    assert wheel.name.endswith(f"-py3-none-{tag}.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.read("gpumemtrace/lib/libgpumemtrace.dylib") == sample("plain")
        [command] = [name for name in names if name.endswith(".data/scripts/gpumemtrace")]
        assert archive.read(command) == sample(newest) and archive.getinfo(command).external_attr >> 16 & 0o111
        assert not any(name.endswith(".so") for name in names)
    assert takes(wheel, tag) and takes(wheel, "macosx_15_0_arm64")
    # 14.2 does not cover all of 14, and no other platform takes the wheel.
    assert takes(wheel, "macosx_14_0_arm64") is (newest == "plain")
    for other in ("macosx_10_15_x86_64", "macosx_15_0_x86_64", "manylinux_2_28_x86_64", "manylinux_2_28_aarch64"):
        assert not takes(wheel, other), other


@pytest.mark.parametrize("other", ["x86_64", "arm64e", "universal", None])
def test_build_refuses_files_for_different_systems(tmp_path, other):
    files = prebuilt(tmp_path / "built", sample("plain"), sample(other) if other else LIBRARY.read_bytes())
    code = "import sys, hatchling.build; hatchling.build.build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=REPOSITORY, capture_output=True, text=True, timeout=300,
                          env=os.environ | {"GPUMEMTRACE_PREBUILT": str(files)})
    assert done.returncode != 0 and "neither for Linux nor for macOS on arm64" in done.stderr
    assert not list(tmp_path.glob("*.whl"))


STARTS = """
import ctypes, functools, importlib.metadata, inspect, json, subprocess, sys, sysconfig, warnings

class Torch:
    def __getattr__(self, name):
        raise SystemExit(f"torch.{name} was asked for")

# Python keeps what it finds out of its own system.
sysconfig.get_path("scripts")
sys.platform = sys.argv[1]
sys.modules["torch"] = Torch()
import gpumemtrace
from gpumemtrace._recording import lifecycle

gpumemtrace.start("late.trace")
driver, address, context = ctypes.CDLL("./libcuda.so.1"), ctypes.c_uint64(), ctypes.c_void_p()
assert driver.cuInit(0) == driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)) == 0
printed = {"library": str(lifecycle.find_library()), "trace": gpumemtrace.stop()}
try:
    gpumemtrace.use_pluggable_allocator()
except RuntimeError as error:
    printed["refused"] = str(error)
print(json.dumps(printed))
"""


def in_a_package(folder, code, *arguments):
    """Runs code with a package that has both libraries; the other system's one is invalid."""
    there = folder / "packages" / "gpumemtrace"
    shutil.copytree(PACKAGE, there, ignore=shutil.ignore_patterns("__pycache__"))
    (there / "lib").mkdir()
    shutil.copy(LIBRARY, there / "lib" / "libgpumemtrace.dylib")
    (there / "lib" / "libgpumemtrace.so").write_text("no library")
    (folder / "libcuda.so.1").symlink_to(DRIVER)
    env = environment(folder, traced=False, PYTHONPATH=there.parent, PYTHONDONTWRITEBYTECODE=1)
    env.pop("GPUMEMTRACE_LIB", None)
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_macos_start_does_not_query_pytorch(tmp_path):
    done = in_a_package(tmp_path, STARTS, "darwin")
    assert done.returncode == 0, done.stdout + done.stderr
    printed = json.loads(done.stdout)
    assert printed["library"] == str(tmp_path / "packages" / "gpumemtrace" / "lib" / "libgpumemtrace.dylib")
    assert printed["trace"] == str(tmp_path / "late.trace")
    assert [event["size"] for event in dump(printed["trace"]) if event["kind"] == "device_alloc"] == [4096]
    assert json.loads(gpumemtrace("replay", printed["trace"], "--json"))["traces"][0]["mode"] == ["started"]
    assert printed["refused"].startswith("PyTorch has pluggable allocators for CUDA only")


def test_linux_uses_the_linux_library(tmp_path):
    done = in_a_package(tmp_path, STARTS, "linux")
    assert done.returncode != 0 and "libgpumemtrace.so" in done.stderr


OURS = {"linux": "/v/my/libgpumemtrace.so", "darwin": "/v/my venv/libgpumemtrace.dylib"}


@pytest.mark.parametrize("platform, variable", [("linux", "LD_PRELOAD"), ("darwin", "DYLD_INSERT_LIBRARIES")])
def test_reader_starts_without_library_and_keeps_other_preloads(platform, variable):
    code = """
import json, sys
from gpumemtrace import _platform
from gpumemtrace._holders import library
for value in json.loads(sys.argv[2]):
    environment = {sys.argv[3]: value, "LANG": "C"}
    answers = [function(environment, sys.argv[1]) for function in (_platform.untraced, library._untraced)]
    assert answers[0] == answers[1] and environment[sys.argv[3]] == value
    print(json.dumps(answers[0].get(sys.argv[3])))
    assert answers[0]["LANG"] == "C"
"""
    ours = OURS[platform]
    cases = {ours: None, "": None, f"{ours}:/a/other.x": "/a/other.x", f"/a/x:{ours}:/b/y": "/a/x:/b/y", "/a/x": "/a/x"}
    # On macOS a space is part of a name; for glibc it ends one.
    cases["/a b"] = "/a b" if platform == "darwin" else "/a:b"
    done = subprocess.run([sys.executable, "-c", code, platform, json.dumps(list(cases)), variable], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == list(cases.values())
