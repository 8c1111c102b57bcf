"""Builds the native files of a wheel. A hatchling hook (pyproject.toml).

These are the recording library, the command, and on Linux what `gpumemtrace simulate` needs. No
file depends on Python, so one wheel serves every CPython. All depend on the glibc or the macOS that
they were linked for, so the wheel's platform tag is read from the files themselves. For a wheel
that runs on older systems, build against their glibc (scripts/wheel); renaming the wheel does not
help. For macOS 11, link with MACOSX_DEPLOYMENT_TARGET=11.0; zig's default is newer.

  GPUMEMTRACE_PREBUILT   a folder with these files, which are used without calling cargo
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
#: What `gpumemtrace simulate` makes its libraries from; on Linux only.
SIMULATION = ("libsimgpu_driver.so", "libsimgpu_toolkit.so")


class CargoBuildHook(BuildHookInterface):
    """Adds the library and the command to a wheel, also to an editable one."""

    def initialize(self, version, build_data):
        folder = prebuilt_folder() or build_with_cargo(Path(self.root))
        # Prebuilt files may be for another system than this one.
        here = LIBRARIES.get(sys.platform, "libgpumemtrace.so")
        library = next((name for name in LIBRARIES.values() if prebuilt_folder() and (folder / name).is_file()), here)
        files = [folder / library, folder / COMMAND]
        if library == LIBRARIES["linux"]:
            files += [folder / name for name in SIMULATION]
        for file in files:
            if not file.is_file():
                raise SystemExit(f"gpumemtrace: {file} does not exist")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(files)}"
        # For an editable installation too: the command looks for the library in site-packages.
        build_data["force_include"][str(files[0])] = f"gpumemtrace/lib/{library}"
        build_data["shared_scripts"][str(files[1])] = COMMAND
        for file in files[2:]:
            build_data["force_include"][str(file)] = f"gpumemtrace/lib/simgpu/{file.name}"


def prebuilt_folder():
    folder = os.environ.get("GPUMEMTRACE_PREBUILT")
    return Path(folder).resolve() if folder else None


def build_with_cargo(root):
    """Builds both files and returns their folder."""
    if MACHINES.get(sys.platform) != platform.machine():
        raise SystemExit(
            f"gpumemtrace supports Linux on x86-64 and macOS on arm64, not {sys.platform} on {platform.machine()}"
        )
    if not shutil.which("cargo"):
        raise SystemExit("building gpumemtrace needs Rust, and cargo was not found; install it from https://rustup.rs")
    names = ["gpumemtrace-interpose", "gpumemtrace-cli"] + ["simgpu-driver", "simgpu-toolkit"] * (sys.platform == "linux")
    packages = [f"--package={name}" for name in names]
    # pip shows stderr if a build fails; stdout belongs to pip.
    done = subprocess.run(["cargo", "build", "--release", "--locked", *packages], cwd=root, stdout=sys.stderr.fileno())
    if done.returncode != 0:
        raise SystemExit(f"gpumemtrace: cargo build failed with exit code {done.returncode}")
    return root / os.environ.get("CARGO_TARGET_DIR", "target") / "release"


def platform_tag(files):
    """The tag of the oldest system on which all files load.

    manylinux_2_N means glibc 2.N, macosx_N_0 means macOS N.
    """
    contents = [file.read_bytes() for file in files]
    if all(content.startswith(b"\x7fELF") for content in contents):
        return f"manylinux_2_{max(map(required_glibc, contents))}_x86_64"
    # From macOS 11 on, pip compares major versions only; so a file for 14.2 needs the tag of 15.
    needed = [required_macos(content) for content in contents]
    return f"macosx_{max(major + (minor > 0) for major, minor in needed)}_0_arm64"


def required_macos(macho):
    """Major and minor version of the macOS that an arm64 file needs.

    From its load command LC_BUILD_VERSION (<mach-o/loader.h>).
    """
    magic, cpu_type, cpu_subtype, _, commands = struct.unpack_from("<5I", macho)
    if (magic, cpu_type, cpu_subtype & 0xFFFFFF) != (0xFEEDFACF, 0x0100000C, 0):
        raise SystemExit("gpumemtrace: one of the files is built neither for Linux nor for macOS on arm64")
    at = 32
    for _ in range(commands):
        command, size, system, needs = struct.unpack_from("<4I", macho, at)
        if (command, system) == (0x32, 1):
            return needs >> 16, needs >> 8 & 0xFF
        at += size
    raise SystemExit("gpumemtrace: one of the files names no minimum macOS version (LC_BUILD_VERSION)")


def required_glibc(elf):
    """The minor version N of the newest GLIBC_2.N that a file needs."""
    minors = [int(match[1]) for name in required_versions(elf) for match in [re.match(rb"GLIBC_2\.(\d+)", name)] if match]
    if not minors:
        raise SystemExit("gpumemtrace: one of the files needs no glibc version: it was built for another C library")
    return max(minors)


def required_versions(elf):
    """The symbol versions that a file needs from other libraries, as bytes.

    From its section SHT_GNU_verneed (ELF64, little endian). The Linux Standard Base describes the
    layout in its chapter "Symbol Versioning".
    """
    verneed = 0x6FFFFFFE
    sections_at, entry_bytes, count = struct.unpack_from("<40xQ10xHH", elf)
    # Type, file offset, and index of the section with the names.
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
