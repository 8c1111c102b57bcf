"""Builds what a wheel carries beside the Python files: the library and the command. Called by hatchling (pyproject.toml).

Constraint: neither has anything of Python in it, and both need the glibc, or the macOS, they were linked for. Consequence: one wheel
is for every CPython, and its tag names the system that the two files ask for, read from the files themselves. A wheel for older
systems is built where their glibc is, and not by another name for this one.

For macOS 11 that is MACOSX_DEPLOYMENT_TARGET=11.0 while they are linked; zig asks for a newer one by itself.

  GPUMEMTRACE_PREBUILT   a folder with both files: they are taken as they are, and cargo is not asked (scripts/wheel)
"""

import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = {"linux": "libgpumemtrace.so", "darwin": "libgpumemtrace.dylib"}
MACHINES = {"linux": "x86_64", "darwin": "arm64"}
COMMAND = "gpumemtrace"


class CargoBuildHook(BuildHookInterface):
    """Adds the two files to the wheel, or to the editable one."""

    def initialize(self, version, build_data):
        folder = prebuilt() or built_by_cargo(Path(self.root))
        # Of files that were built elsewhere, for whatever system they are.
        here = LIBRARIES.get(sys.platform, "libgpumemtrace.so")
        library = next((name for name in LIBRARIES.values() if prebuilt() and (folder / name).is_file()), here)
        files = [folder / library, folder / COMMAND]
        for file in files:
            if not file.is_file():
                raise SystemExit(f"gpumemtrace: {file} is not there")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(files)}"
        # Of an editable installation too, whose package is elsewhere: the command finds it where that of any other is.
        build_data["force_include"][str(files[0])] = f"gpumemtrace/lib/{library}"
        build_data["shared_scripts"][str(files[1])] = COMMAND


def prebuilt():
    folder = os.environ.get("GPUMEMTRACE_PREBUILT")
    return Path(folder).resolve() if folder else None


def built_by_cargo(root):
    """Builds both; the folder they are in."""
    if MACHINES.get(sys.platform) != platform.machine():
        raise SystemExit(
            f"gpumemtrace is for Linux on x86-64 and macOS on arm64; this is {sys.platform} on {platform.machine()}"
        )
    if not shutil.which("cargo"):
        raise SystemExit("gpumemtrace is built with Rust, and cargo was not found; get it from https://rustup.rs")
    packages = ["--package", "gpumemtrace-interpose", "--package", "gpumemtrace-cli"]
    # What cargo says belongs to what pip shows of a build that failed; stdout is pip's own.
    done = subprocess.run(["cargo", "build", "--release", "--locked", *packages], cwd=root, stdout=sys.stderr.fileno())
    if done.returncode != 0:
        raise SystemExit(f"gpumemtrace: cargo build failed with {done.returncode}")
    return root / os.environ.get("CARGO_TARGET_DIR", "target") / "release"


def platform_of(files):
    """The tag of the oldest system on which all of them load: manylinux_2_N is glibc 2.N, macosx_N_0 is macOS N."""
    contents = [file.read_bytes() for file in files]
    if all(content.startswith(b"\x7fELF") for content in contents):
        return f"manylinux_2_{max(map(newest_glibc, contents))}_x86_64"
    # From 11 on, pip goes by the first number alone; so a file for 14.2 is for 15.
    needed = [macos_needed(content) for content in contents]
    return f"macosx_{max(major + (minor > 0) for major, minor in needed)}_0_arm64"


def macos_needed(macho):
    """The macOS that a program or library for arm64 is for, as two numbers: its LC_BUILD_VERSION (<mach-o/loader.h>)."""
    magic, cpu_type, cpu_subtype, _, commands = struct.unpack_from("<5I", macho)
    if (magic, cpu_type, cpu_subtype & 0xFFFFFF) != (0xFEEDFACF, 0x0100000C, 0):
        raise SystemExit("gpumemtrace: one of the files is neither for Linux nor for macOS on arm64")
    at = 32
    for _ in range(commands):
        command, size, system, needs = struct.unpack_from("<4I", macho, at)
        if (command, system) == (0x32, 1):
            return needs >> 16, needs >> 8 & 0xFF
        at += size
    raise SystemExit("gpumemtrace: one of the files does not say for which macOS it is")


def newest_glibc(elf):
    """The minor number of the newest GLIBC_2.N that a file needs."""
    minors = [int(match[1]) for name in needed_versions(elf) for match in [re.match(rb"GLIBC_2\.(\d+)", name)] if match]
    if not minors:
        raise SystemExit("gpumemtrace: a file that needs no version of glibc was built for another C library")
    return max(minors)


def needed_versions(elf):
    """Names of versions that a file asks other libraries for: its section SHT_GNU_verneed (ELF64, little endian; layout in the Linux
    Standard Base, chapter "Symbol Versioning")."""
    verneed = 0x6FFFFFFE
    sections_at, entry_bytes, count = struct.unpack_from("<40xQ10xHH", elf)
    # Type, offset in the file, and which section has its names.
    sections = [struct.unpack_from("<4xI16xQ8xI", elf, sections_at + number * entry_bytes) for number in range(count)]
    for kind, offset, names in sections:
        if kind != verneed:
            continue
        names_at = sections[names][1]
        library = offset
        while True:
            versions, first, next_library = struct.unpack_from("<2xH4xII", elf, library)
            at = library + first
            for _ in range(versions):
                name, next_version = struct.unpack_from("<8xII", elf, at)
                yield elf[names_at + name : elf.index(b"\0", names_at + name)]
                at += next_version
            if next_library == 0:
                break
            library += next_library
