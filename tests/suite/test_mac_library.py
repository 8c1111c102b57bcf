"""The library for macOS, as the file that the linker has made (scripts/mac). LIEF reads it, which shares no code with us.

What it does when it runs is not tested anywhere: docs/mps.md.
"""

import os
import re
import struct

import lief
import pytest

METAL = "/System/Library/Frameworks/Metal.framework/Versions/A/Metal"
SYSTEM = "/usr/lib/libSystem.B.dylib"
#: What the Python package and other programs call by name.
CALLED = {"holder", "holders", "mark", "mps_memory", "phase_begin", "phase_end", "start", "step", "stop", "trace"}
#: Whoever calls the first gets the second.
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
    """A function's path without the numbers around its parts."""
    return "::".join(re.findall(r"\d+([a-z_]+)", name))


def test_it_is_a_library_for_apples_processors_that_the_loader_accepts(library):
    assert library.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    assert library.header.file_type == lief.MachO.Header.FILE_TYPE.DYLIB
    assert library.build_version.platform == lief.MachO.BuildVersion.PLATFORMS.MACOS
    assert list(library.build_version.minos) == [11, 0, 0]
    assert library.libraries[0].name == "@rpath/libgpumemtrace.dylib"
    # Programs of this processor load nothing that is not signed; the linker does so, with nobody's name.
    assert library.has_code_signature and library.code_signature.data_size > 0
    assert library.has_uuid and any(library.uuid.uuid)


def test_it_needs_nothing_but_metal_and_the_system(library):
    needed = {entry.name for entry in library.libraries if entry.command == lief.MachO.LoadCommand.TYPE.LOAD_DYLIB}
    assert {METAL, SYSTEM} <= needed
    assert needed - {METAL, SYSTEM} <= {"/usr/lib/libiconv.2.dylib", "/usr/lib/libcharset.1.dylib"}, "Rust's own needs"
    for binding in library.bindings:
        assert binding.has_library, f"{binding.symbol.name} would be looked for everywhere"


def test_what_is_called_by_name_is_there_and_nothing_of_cuda_is(library):
    exported = {symbol.name for symbol in library.exported_symbols}
    assert {name for name in exported if name.startswith("_gpumemtrace_")} == {f"_gpumemtrace_{name}" for name in CALLED}
    assert not [name for name in exported if re.match(r"_(cu[A-Z]|cuda|dlsym|dlclose|_?_?exit$)", name)]


def test_the_loader_is_told_which_functions_to_replace(library):
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


def test_our_constructor_runs_when_it_is_loaded(library):
    sections = [section for section in library.sections if section.name == "__mod_init_func"]
    names = {symbol.value: plain(symbol.name) for symbol in library.symbols if symbol.value}
    functions = [names[struct.unpack_from("<Q", bytes(section.content), at)[0]]
                 for section in sections for at in range(0, section.size, 8)]
    assert any("macos::entry_points::constructor" in name.lower() for name in functions), functions


def test_what_it_takes_of_the_system_is_what_is_documented(library):
    """What the recorder takes of macOS beyond POSIX: a change here is a change of what docs/mps.md says."""
    imported = {symbol.name.lstrip("_") for symbol in library.imported_symbols}
    assert {"mach_vm_read_overwrite", "mach_vm_remap", "minherit", "thread_get_register_pointer_values", "ulock_wait", "ulock_wake",
            "proc_pidinfo", "pthread_threadid_np", "renamex_np", "dyld_register_func_for_remove_image"} <= imported
    assert not imported & {"fork", "vfork", "signal", "sigaction", "setpriority"}
