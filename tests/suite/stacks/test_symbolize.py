"""Checks the names of native frames against binutils' addr2line on the same, unstripped files."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from conftest import COMMAND, PYTHONS, dump, gpumemtrace, sentences
from stack_dump import FIELD, stacks
from route_programs import ROUTES, place  # noqa: F401

TOOLS = ("c++", "addr2line", "objcopy", "strip")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Isolates the test from the symbol cache that an earlier run left on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpumemtrace" / "symbols"


@pytest.fixture
def traced(place):  # noqa: F811
    """Builds and records native_names.c with its library; yields run and unstripped files."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        reason = f"not checked: {', '.join(missing)} not installed here"
        pytest.fail(reason) if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip(reason)
    folder = place.folder
    subprocess.run(["c++", "-O1", "-g", "-shared", "-fPIC", "-Wl,--build-id", "-o", folder / "libnames.so", ROUTES / "native_names_lib.cpp"],
                   check=True)
    place.compile("names", ROUTES / "native_names.c", "-Wl,--build-id", "-Wl,--no-as-needed", "-lnames", "-l:libcuda.so.1")
    built = folder / "built"
    built.mkdir()
    for name in ("names", "libnames.so"):
        shutil.copy(folder / name, built / name)
    return place


def record(place):  # noqa: F811
    done = place.run(place.folder / "names", GPUMEMTRACE_STACKS="native")
    assert (done.returncode, done.stderr) == (0, "")
    return place.folder / "run.trace"


def split(folder, name, debug):
    """Strips a file in place and writes its debug information to `debug`."""
    debug.parent.mkdir(exist_ok=True)
    subprocess.run(["objcopy", "--only-keep-debug", folder / name, debug], check=True)
    subprocess.run(["strip", "--strip-all", folder / name], check=True)
    subprocess.run(["objcopy", f"--add-gnu-debuglink={debug}", folder / name], check=True)


def report(trace, *flags, code=0):
    return json.loads(gpumemtrace("replay", trace, "--json", *flags, code=code))


def native_stacks(report):
    """Maps each native address at the peak to its frames, innermost first."""
    found = []
    for share in report["peak"][0]["sites"]:
        frames = {}
        for frame in share["site"]["stack"]:
            assert frame["kind"] == "native"
            names = frames.setdefault((frame["module"], frame["offset"]), [])
            names.append((frame["function"], frame["file"], frame["line"]))
        found.append(frames)
    return found


def by_addr2line(path, offset):
    """Returns the frames that addr2line prints for the call that returns to `offset`."""
    lines = subprocess.run(["addr2line", "-Cfi", "-e", path, hex(offset - 1)], capture_output=True, text=True, check=True).stdout
    lines = lines.splitlines()
    frames = []
    for function, place in zip(lines[::2], lines[1::2]):
        file, line = re.sub(r" \(discriminator \d+\)$", "", place).rsplit(":", 1)
        frames.append((function, os.path.normpath(file), int(line) if line.isdigit() else None))
    return frames


def own_frames(stack, folder):
    return {(os.path.basename(module), offset): [(function, os.path.normpath(file or "??"), line) for function, file, line in frames]
            for (module, offset), frames in stack.items() if os.path.dirname(module) == str(folder)
            and not os.path.basename(module).startswith("libcuda")}


@pytest.mark.parametrize("files", ["whole", "beside", "in .debug", "debug file in its place"])
def test_native_names_match_addr2line(traced, files):
    folder = traced.folder
    if files != "whole":
        for name in ("names", "libnames.so"):
            split(folder, name, folder / (".debug" if files == "in .debug" else ".") / f"{name}.debug")
    trace = record(traced)
    if files == "debug file in its place":
        for name in ("names", "libnames.so"):
            os.replace(folder / f"{name}.debug", folder / name)
    whole = report(trace)
    seen = [own_frames(stack, folder) for stack in native_stacks(whole)]
    assert len(seen) == 3, "three lines allocate"
    functions = set()
    for stack in seen:
        assert len(stack) >= 2
        for (name, offset), frames in stack.items():
            assert frames == by_addr2line(folder / "built" / name, offset), (name, hex(offset))
            functions |= {function for function, _, _ in frames}
    assert {"take", "grow_static", "grow_exported", "main", "pool_grow", "pool::Arena<double>::take(unsigned long)",
            "pool::Arena<double>::grow(unsigned long, char const*)"} <= functions, functions
    assert any(name.startswith("pool::grow(pool::Arena<double>&, unsigned long)") for name in functions)
    assert max(len(frames) for stack in seen for frames in stack.values()) == 2, "inlined into its caller"
    text = sentences(gpumemtrace("replay", trace, "--peak"))
    source = ROUTES / "native_names.c"
    line = 1 + source.read_text().splitlines().index("    int result = cuMemAlloc_v2(&kept[number], bytes);")
    assert re.search(rf"take \(\S*names\.c:{line}\)", text), text


def test_function_names_survive_without_debug_info(traced):
    folder = traced.folder
    for name in ("names", "libnames.so"):
        subprocess.run(["strip", "--strip-debug", folder / name], check=True)
    trace = record(traced)
    for stack in native_stacks(report(trace)):
        for (module, offset), frames in stack.items():
            if os.path.dirname(module) == str(folder) and "names" in module:
                truth = by_addr2line(folder / os.path.basename(module), offset)
                # binutils names the nearest symbol below the address; a linker stub has none.
                assert [function for function, _, _ in frames] == [function for function, _, _ in truth]


def test_unnamed_frames_show_module_and_offset_and_are_counted(traced):
    for name in ("names", "libnames.so"):
        subprocess.run(["strip", "--strip-all", traced.folder / name], check=True)
    trace = record(traced)
    found = report(trace)
    naming = found["traces"][0]["symbols"]
    program = [reason for reason in naming["reasons"] if reason["module"] == str(traced.folder / "names")]
    assert [reason["why"] for reason in program] == ["no_symbols"]
    assert naming["unresolved"] == sum(reason["addresses"] for reason in naming["reasons"]) <= naming["addresses"]
    text = sentences(gpumemtrace("replay", trace, "--peak"))
    assert re.search(r"names\+0x[0-9a-f]+", text) and "no name for" in text and "install its debug symbols" in text


def without_naming(report):
    for trace in report["traces"]:
        trace["path"] = None
        trace.pop("symbols", None)
    return report


def test_symbolized_trace_needs_no_libraries(traced, monkeypatch):
    monkeypatch.setenv("GPUMEMTRACE_CACHE", "off")
    folder = traced.folder
    trace = record(traced)
    before = report(trace)
    original = trace.read_bytes()
    out = gpumemtrace("symbolize", trace)
    copy = folder / "run.symbolized.trace"
    assert str(copy) in out and trace.read_bytes() == original
    written = copy.read_bytes()
    assert written[:16] == original[:16] and written.endswith(original[16:]) and len(written) > len(original)
    assert oct(copy.stat().st_mode & 0o777) == "0o600"
    assert [event for event in dump(copy)] == [event for event in dump(trace)]
    for name in ("names", "libnames.so"):
        (folder / name).unlink()
    gone = report(trace)
    assert {reason["why"] for reason in gone["traces"][0]["symbols"]["reasons"] if "names" in reason["module"]} == {"file_missing"}
    assert without_naming(report(copy)) == without_naming(before) != without_naming(gone)
    # Symbolizing the copy again keeps the names it already has.
    gpumemtrace("symbolize", copy, "-o", folder / "again.trace")
    assert (folder / "again.trace").read_bytes() == written


def test_library_with_other_build_id_is_refused_and_counted(traced):
    trace = record(traced)
    subprocess.run(["c++", "-O0", "-g", "-shared", "-fPIC", "-Wl,--build-id", "-o", traced.folder / "libnames.so",
                    ROUTES / "native_names_lib.cpp"], check=True)
    found = report(trace)
    reasons = {reason["module"]: reason["why"] for reason in found["traces"][0]["symbols"]["reasons"]}
    assert reasons[str(traced.folder / "libnames.so")] == "other_build"
    for stack in native_stacks(found):
        for (module, _), frames in stack.items():
            if module.endswith("libnames.so"):
                assert frames == [(None, None, None)]
    assert "is another build" in sentences(gpumemtrace("replay", trace, "--peak"))


def test_damaged_symbol_cache_is_rebuilt(traced, own_cache, monkeypatch):
    trace = record(traced)
    before = report(trace)
    files = {path: path.read_bytes() for path in own_cache.iterdir()}
    assert len(files) >= 2
    for path, sound in files.items():
        for damaged in (b"", sound[: len(sound) // 2], sound[:40] + b"\xff" + sound[41:], b"\0" * 100):
            path.write_bytes(damaged)
            assert report(trace) == before
            assert path.read_bytes() == sound, "written anew"
    for name in ("names", "libnames.so"):
        (traced.folder / name).unlink()
    assert report(trace) == before, "a build id is enough for what is remembered"
    monkeypatch.setenv("GPUMEMTRACE_CACHE", "off")
    assert report(trace) != before


def test_symbolize_errors_are_one_line(traced):
    trace = record(traced)

    def refused(*arguments):
        done = subprocess.run([COMMAND, "symbolize", *arguments], capture_output=True, text=True)
        assert done.stderr.count("\n") == 1 and not done.stdout, done
        return done.returncode, done.stderr

    with open(trace) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, says = refused(trace)
        assert code == 5 and "still being written" in says
    assert not (traced.folder / "run.symbolized.trace").exists()
    gpumemtrace("symbolize", trace)
    code, says = refused(trace)
    assert code == 2 and "exists" in says and "--force" in says
    gpumemtrace("symbolize", trace, "--force")
    assert refused(traced.folder / "names")[0] == 5
    # A truncated trace is copied as it is.
    cut = traced.folder / "cut.trace"
    cut.write_bytes(trace.read_bytes()[:-30])
    gpumemtrace("symbolize", cut, code=6)
    assert (traced.folder / "cut.symbolized.trace").read_bytes().endswith(cut.read_bytes()[16:])
    assert native_stacks(report(traced.folder / "cut.symbolized.trace", code=6)) == native_stacks(report(cut, code=6))


def native_paths(trace):
    """Maps each node id to [(module, offset), ...], innermost first."""
    frames = {}
    for line in gpumemtrace("dump", trace, "--stacks").splitlines():
        if line.startswith("native "):
            fields = {key: json.loads(text) if text.startswith('"') else text for key, text in FIELD.findall(line)}
            frames[int(fields["id"])] = (int(fields["parent"]), (fields["module"], int(fields["offset"], 16)))

    def stack(node):
        out = []
        while node:
            node, frame = frames[node]
            out.append(frame)
        # The recorder's own frames are innermost, or where an autograd call passes through it.
        return tuple(frame for frame in out if "libgpumemtrace" not in frame[0])

    return stack


def test_python_and_native_frames_interleave_in_call_order(run_python, torch_version):
    run = run_python(torch_version, "training/train.py", GPUMEMTRACE_STACKS="both")
    python, native = stacks(run.trace), native_paths(run.trace)
    recorded = {(tuple(python(event["python"])), native(event["native"])) for event in run.events() if event["kind"] == "block_alloc"}
    mixed = [share["site"] for share in run.report("--peak")["peak"][0]["sites"] if share["site"].get("stack_order")]
    assert len(mixed) >= 3 and all(site["stack_order"] == "exact" for site in mixed)
    for site in mixed:
        stack = site["stack"]
        frames = tuple((frame["file"], frame["line"], frame["function"]) for frame in stack if frame["kind"] == "python")
        # Backward threads have no Python frames; frames of the forward line follow their own.
        is_backward = frames[0] == (None, None, "<backward>")
        if is_backward:
            frames = (("?", 0, "?"),) + frames[1:]
        places = [(frame["module"], frame["offset"]) for frame in stack
                  if frame["kind"] == "native" and not frame.get("is_inlined")]
        assert (frames, tuple(places)) in recorded, "each stack keeps its frames and their order"
        innermost = next(at for at, frame in enumerate(stack) if frame["kind"] == "python")
        if is_backward:
            assert all(frame["kind"] == "python" for frame in stack[innermost:]), "the thread's own frames come first"
            continue
        inside = [os.path.basename(frame["module"]) for frame in stack[:innermost]]
        assert any(name.startswith("libtorch") for name in inside) and any(name.startswith("libc10") for name in inside), inside
        assert not any(is_loop(frame) for frame in stack[:innermost])
        after = next(frame for frame in stack[innermost:] if frame["kind"] == "native" and not frame.get("is_inlined"))
        assert is_loop(after), "the interpreter's loop runs the innermost Python frame"
        # Python frames appear only inside a run of the loop; frames inlined into it belong to it.
        whole = [frame for frame in stack if not frame.get("is_inlined")]
        for frame, caller in zip(whole, whole[1:]):
            assert frame["kind"] == "native" or caller["kind"] == "python" or is_loop(caller)
    text = gpumemtrace("replay", run.trace, "--peak", "--stacks")
    assert "_PyEval_EvalFrameDefault" in text and "is approximate" not in text
    assert "_PyEval_EvalFrameDefault" not in gpumemtrace("replay", run.trace, "--peak")


CALLBACKS = """
import ctypes, sys
driver, library = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
context, pointer = ctypes.c_void_p(), ctypes.c_ulonglong()
assert driver.cuInit(0) == driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == driver.cuCtxSetCurrent(context) == 0
def allocate():
    return driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20))
def generated():
    yield library.through_b(inner)
def call():
    return next(generated())
inner = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: allocate())
outer = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: call())
assert library.through_a(outer) == 11
"""


@pytest.mark.parametrize("python", PYTHONS or [sys.executable], ids=lambda path: os.path.basename(path))
def test_callbacks_appear_between_caller_and_callee(place, python):  # noqa: F811
    """Nests callbacks: Python calls C, which calls Python, and so on; some frames share a loop."""
    folder = place.folder
    (folder / "callbacks.c").write_text("typedef int (*call)(void);\n"
                                        "int through_a(call f) { return f() + 1; }\nint through_b(call f) { return f() + 10; }\n")
    library = place.compile("libcallbacks.so", folder / "callbacks.c")
    (folder / "callbacks.py").write_text(CALLBACKS)
    done = place.run(python, "callbacks.py", folder / "libcuda.so.1", library, GPUMEMTRACE_STACKS="both")
    assert (done.returncode, done.stderr) == (0, "")
    site = report(folder / "run.trace")["peak"][0]["sites"][0]["site"]
    if not any(is_loop(frame) for frame in site["stack"]):
        pytest.skip("this interpreter has no symbols")
    names = ["LOOP" if is_loop(frame) else frame["function"] for frame in site["stack"]
             if frame["kind"] == "python" or is_loop(frame) or frame["function"] in ("through_a", "through_b")]
    minor = int(subprocess.run([python, "-c", "import sys; print(sys.version_info[1])"], capture_output=True, text=True, check=True).stdout)
    if minor < 11:
        assert names == ["allocate", "LOOP", "<lambda>", "LOOP", "through_b", "generated", "LOOP", "call", "LOOP", "<lambda>", "LOOP",
                         "through_a", "<module>", "LOOP"]
    else:
        # Callbacks and generators resumed by next() have their own run of the interpreter's loop.
        assert names == ["allocate", "<lambda>", "LOOP", "through_b", "generated", "LOOP", "call", "<lambda>", "LOOP", "through_a",
                         "<module>", "LOOP"]
    assert site["stack_order"] == "exact" and site["function"] == "allocate"


def is_loop(frame):
    return frame["kind"] == "native" and (frame["function"] or "").startswith("_PyEval_EvalFrameDefault")


def test_user_code_option_includes_installed_packages(run_python, torch_version):
    run = run_python(torch_version, "training/train.py")

    def files(*flags):
        return {share["site"]["file"] for share in run.report("--peak", *flags)["peak"][0]["sites"]}

    assert not any("site-packages" in file for file in files() if file)
    assert any("site-packages/torch/nn" in file for file in files("--user-code", "site-packages/torch/nn") if file)
    done = subprocess.run([COMMAND, "replay", run.trace, "--user-code", "."], capture_output=True, text=True)
    assert done.returncode == 2 and "--user-code" in done.stderr
