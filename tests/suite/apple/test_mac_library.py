"""Checks the macOS library as linked (scripts/mac), read by LIEF, which shares no code with us.

No test runs it: see docs/mps.md.
"""

import os
import re
import struct

import lief
import pytest

METAL = "/System/Library/Frameworks/Metal.framework/Versions/A/Metal"
SYSTEM = "/usr/lib/libSystem.B.dylib"
#: Functions that the Python package and other programs call by name.
CALLED = {"holder", "holders", "mark", "mps_memory", "phase_begin", "phase_end", "start", "step", "stop", "trace"}
#: Interposed functions: callers of the key reach the value.
REPLACED = {
    "_MTLCopyAllDevices": "interposed::copy_all_devices",
    "_MTLCreateSystemDefaultDevice": "interposed::create_system_default_device",
    "__exit": "entry_points::end_now",
    "__Exit": "entry_points::end_now",
}


@pytest.fixture(scope="module")
def library():
    path = os.environ.get("GPUMEMTRACE_MAC_LIBRARY")
    if not path:
        pytest.skip("no library for macOS was built (scripts/mac)")
    universal = lief.MachO.parse(path)
    assert universal.size == 1
    return universal.at(0)


def plain(name):
    """Returns a function's mangled path without the length prefixes."""
    return "::".join(re.findall(r"\d+([a-z_]+)", name))


def test_library_is_signed_arm64_dylib(library):
    assert library.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    assert library.header.file_type == lief.MachO.Header.FILE_TYPE.DYLIB
    assert library.build_version.platform == lief.MachO.BuildVersion.PLATFORMS.MACOS
    assert list(library.build_version.minos) == [11, 0, 0]
    assert library.libraries[0].name == "@rpath/libgpumemtrace.dylib"
    # arm64 processes load only signed code; the linker signs ad hoc.
    assert library.has_code_signature and library.code_signature.data_size > 0
    assert library.has_uuid and any(library.uuid.uuid)


def test_library_depends_only_on_metal_and_system(library):
    needed = {entry.name for entry in library.libraries if entry.command == lief.MachO.LoadCommand.TYPE.LOAD_DYLIB}
    assert {METAL, SYSTEM} <= needed
    assert needed - {METAL, SYSTEM} <= {"/usr/lib/libiconv.2.dylib", "/usr/lib/libcharset.1.dylib"}, "Rust's own needs"
    for binding in library.bindings:
        assert binding.has_library, f"{binding.symbol.name} would be looked for everywhere"


def test_exports_named_functions_and_no_cuda(library):
    exported = {symbol.name for symbol in library.exported_symbols}
    assert {name for name in exported if name.startswith("_gpumemtrace_")} == {f"_gpumemtrace_{name}" for name in CALLED}
    assert not [name for name in exported if re.match(r"_(cu[A-Z]|cuda|dlsym|dlclose|_?_?exit$)", name)]


def test_interpose_section_lists_replaced_functions(library):
    section = library.get_section("__DATA", "__interpose")
    at, content = section.virtual_address, bytes(section.content)
    ours = {symbol.value: symbol.name for symbol in library.symbols if symbol.value}
    theirs = {binding.address: (binding.symbol.name, binding.library.name) for binding in library.bindings}
    pairs = {}
    for offset in range(0, len(content), 16):
        new, unbound = struct.unpack_from("<QQ", content, offset)
        assert unbound == 0, "the loader puts the old function there"
        old, where = theirs[at + offset + 8]
        assert where == (METAL if old.startswith("_MTL") else SYSTEM)
        pairs[old] = plain(ours[new])
    assert set(pairs) == set(REPLACED)
    for old, new in pairs.items():
        assert REPLACED[old] in new, (old, new)


def test_constructor_is_registered(library):
    sections = [section for section in library.sections if section.name == "__mod_init_func"]
    names = {symbol.value: plain(symbol.name) for symbol in library.symbols if symbol.value}
    functions = [names[struct.unpack_from("<Q", bytes(section.content), at)[0]]
                 for section in sections for at in range(0, section.size, 8)]
    assert any("macos::entry_points::constructor" in name.lower() for name in functions), functions


def test_system_imports_match_documentation(library):
    """Lists what the recorder uses of macOS beyond POSIX; docs/mps.md documents the same list."""
    imported = {symbol.name.lstrip("_") for symbol in library.imported_symbols}
    assert {"mach_vm_read_overwrite", "mach_vm_remap", "minherit", "thread_get_register_pointer_values", "ulock_wait", "ulock_wake",
            "proc_pidinfo", "pthread_threadid_np", "renamex_np", "dyld_register_func_for_remove_image"} <= imported
    assert not imported & {"fork", "vfork", "signal", "sigaction", "setpriority"}
