"""Snapshots as people have them: in archives, compressed, in pages of PyTorch; and files of others."""

import functools
import gzip
import io
import lzma
import os
import pickle
import shutil
import sqlite3
import struct
import subprocess
import zipfile
import zlib
from pathlib import Path

import pytest

from conftest import COMMAND, VENVS, gpumemtrace
from snapshot_files import readers_of_pytorch
from snapshot_reports import GOLDEN, contents, run_command

#: The address space of the command that reads bombs.
MEMORY_BYTES = 200 << 20
SNAPSHOT = GOLDEN / "torch-2.7.1-oom.pickle.gz"


@pytest.fixture(scope="module")
def snapshot():
    return contents(SNAPSHOT)


@pytest.fixture(scope="module")
def plain(snapshot):
    return pickle.dumps(snapshot)


def report_without_names(path):
    done = run_command("replay", path, "--json", "--at", "end")
    assert done.returncode in (0, 6), done.stderr
    return done.returncode, done.stdout.replace(str(path), "FILE")


@pytest.fixture(scope="module")
def expected(plain, tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "a.pickle"
    path.write_bytes(plain)
    return report_without_names(path)


class Unseekable(io.RawIOBase):
    """A stream, to which zip writes sizes behind the contents."""

    def __init__(self, file):
        self.file = file

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)


def zipped(path, files, method=zipfile.ZIP_DEFLATED, is_stream=False, comment=b"", front=b""):
    with open(path, "wb") as file:
        file.write(front)
        with zipfile.ZipFile(Unseekable(file) if is_stream else file, "w", method) as archive:
            archive.comment = comment
            for name, data in files.items():
                archive.writestr(name, data)


def large_zip(path, files):
    """An archive with sizes of 64 bits in its directory."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            with archive.open(name, "w", force_zip64=True) as entry:
                entry.write(data)


def archives(path, plain):
    macos = {"__MACOSX/._a.pickle": b"\x80\x02x", "folder/": b"", "notes.txt": b"hello", "config.json": b"{}"}
    make = {
        "deflated.zip": lambda path: zipped(path, {"runs/a.pickle": plain} | macos),
        "stored.zip": lambda path: zipped(path, {"a.pickle": plain}, zipfile.ZIP_STORED),
        "stream.zip": lambda path: zipped(path, {"a.pickle": plain}, is_stream=True),
        "stored-stream.zip": lambda path: zipped(path, {"a.pickle": plain}, zipfile.ZIP_STORED, is_stream=True),
        "comment.zip": lambda path: zipped(path, {"a.pickle": plain}, comment=b"c" * 40_000),
        "front.zip": lambda path: zipped(path, {"a.pickle": plain}, front=b"PK\x03\x04" + b"x" * 1000),
        "large.zip": lambda path: large_zip(path, {"a.pickle": plain}),
        "nested.zip": lambda path: zipped(path, {"a.pickle.gz": gzip.compress(plain)}, zipfile.ZIP_STORED),
        "a.pickle.gz": lambda path: path.write_bytes(gzip.compress(plain)),
        "a.pickle.xz": lambda path: path.write_bytes(lzma.compress(plain)),
        "crc32.xz": lambda path: path.write_bytes(lzma.compress(plain, check=lzma.CHECK_CRC32)),
        "sha256.xz": lambda path: path.write_bytes(lzma.compress(plain, check=lzma.CHECK_SHA256)),
        "two-streams.xz": lambda path: path.write_bytes(lzma.compress(plain[:1000]) + lzma.compress(plain[1000:])),
        "largest.xz": lambda path: path.write_bytes(lzma.compress(plain, preset=9)),
    }
    for name, write in make.items():
        write(path / name)
    return list(make)


def test_archives_and_compressions_give_the_report_of_the_pickle(tmp_path, plain, expected):
    for name in archives(tmp_path, plain):
        assert report_without_names(tmp_path / name) == expected, name


def test_zstd_gives_the_report_of_the_pickle(tmp_path, plain, expected):
    if shutil.which("zstd") is None:
        reason = "not checked: zstd is not installed"
        (pytest.fail if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip)(reason)
    path = tmp_path / "a.pickle"
    path.write_bytes(plain)
    subprocess.run(["zstd", "-q", "-19", "--long=27", path], check=True)
    assert report_without_names(tmp_path / "a.pickle.zst") == expected


def test_pages_of_pytorch_give_the_report_of_the_snapshot(tmp_path, snapshot, expected):
    for version, viewer in readers_of_pytorch().items():
        for plot in (viewer.trace_plot, viewer.segment_plot):
            path = tmp_path / f"{version}-{plot.__name__}.html"
            path.write_text(plot(snapshot))
            assert report_without_names(path) == expected, path.name
    packed = tmp_path / "page.html.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert report_without_names(packed) == expected


def in_pytorch(version, code, folder, *arguments):
    python = Path(VENVS[version]) / "bin/python"
    env = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([python, "-c", code, *map(str, arguments)], cwd=folder, env=env, check=True, capture_output=True)


@pytest.mark.every_torch
def test_files_of_torch_save(tmp_path, torch_version, plain, expected):
    (tmp_path / "a.pickle").write_bytes(plain)
    in_pytorch(torch_version, """
import pickle, torch
with open("a.pickle", "rb") as file:
    snapshot = pickle.load(file)
torch.save(snapshot, "a.pt")
torch.save(snapshot, "old.pt", _use_new_zipfile_serialization=False)
model = torch.nn.Linear(2, 2).state_dict()
torch.save(model, "model.pt")
torch.save(model, "old-model.pt", _use_new_zipfile_serialization=False)
""", tmp_path)
    for name in ("a.pt", "old.pt"):
        assert report_without_names(tmp_path / name) == expected, name
    for name in ("model.pt", "old-model.pt"):
        done = run_command("replay", tmp_path / name)
        assert done.returncode == 5
        assert "torch.save wrote it, and it holds tensors or other objects, as a checkpoint does; give the" in done.stderr


def refusal(path, *command):
    """The one line of an unreadable file, without the file's name."""
    done = run_command(*(command or ("replay",)), path)
    assert done.returncode == 5 and done.stdout == "", (done.returncode, done.stdout)
    start = f"gpumemtrace: {path} is "
    assert done.stderr.startswith(start) and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix(start).strip()


INSTEAD = "record the program with gpumemtrace run, or give the file of torch.cuda.memory._dump_snapshot()"


def test_files_of_other_tools_are_named(tmp_path, torch_version):
    database = sqlite3.connect(tmp_path / "report.sqlite")
    database.execute("CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER)")
    database.commit()
    in_pytorch(torch_version, """
import torch
with torch.profiler.profile(profile_memory=True) as profile:
    torch.ones(3) + 1
profile.export_chrome_trace("timeline.json")
""", tmp_path)
    (tmp_path / "timeline.json.gz").write_bytes(gzip.compress((tmp_path / "timeline.json").read_bytes()))
    gpumemtrace("export", "pprof", SNAPSHOT, "-o", tmp_path / "memory.prof", code=None)
    gpumemtrace("html", SNAPSHOT, "-o", tmp_path / "ours.html", code=None)
    (tmp_path / "host.bin").write_bytes(b"memray" + struct.pack("<I", 11) + bytes(100))
    (tmp_path / "heaptrack.python.1.gz").write_bytes(gzip.compress(b"v 10500 3\nX python train.py\n" * 100))
    (tmp_path / "report.nsys-rep").write_bytes(b"\0" * 100)
    for name, what in {
        "report.sqlite": f"an SQLite database, such as nsys export writes: {INSTEAD}",
        "report.nsys-rep": f"a report of Nsight Systems (nsys): {INSTEAD}",
        "host.bin": f"a recording of memray, which sees host memory only: {INSTEAD}",
        "heaptrack.python.1.gz": f"a recording of heaptrack, which sees host memory only: {INSTEAD}",
        "memory.prof": "a pprof profile (such as jax.profiler.save_device_memory_profile() writes), which has totals but no "
                       f"events: {INSTEAD}",
        "timeline.json": "a profiler timeline, such as torch.profiler exports, which does not record every block: "
                         f"{INSTEAD}",
        "timeline.json.gz": "a profiler timeline, such as torch.profiler exports, which does not record every block: "
                            f"{INSTEAD}",
        "ours.html": "a page of gpumemtrace html: give the trace that it was made of",
    }.items():
        assert refusal(tmp_path / name) == what, name
    for command in ("info", "dump", "html"):
        assert refusal(tmp_path / "report.sqlite", command).startswith("an SQLite database")


def test_empty_snapshot_says_so(tmp_path):
    for name in ("a.pickle", "snapshot.pickle.gz", "a.json"):
        (tmp_path / name).touch()
        assert refusal(tmp_path / name) == (
            "empty: the program was stopped before it had written the snapshot, or the disk was full; take the "
            "snapshot again"
        )


def test_archive_without_one_snapshot_says_what_it_holds(tmp_path, plain):
    zipped(tmp_path / "two.zip", {"rank0.pickle": plain, "rank1.pickle": plain})
    assert refusal(tmp_path / "two.zip") == (
        "a zip archive with 2 files that may be snapshots (rank0.pickle, rank1.pickle); unpack it and give one of them"
    )
    zipped(tmp_path / "none.zip", {f"{number}.txt": b"hello" for number in range(5)})
    assert refusal(tmp_path / "none.zip").startswith(
        "a zip archive without a PyTorch snapshot; it holds 0.txt, 1.txt, 2.txt and 2 more; give the file")


def test_damage_in_packed_snapshots_is_an_error(tmp_path, plain):
    """A changed byte is found by the checksum, also behind the end of the pickle."""
    zipped(tmp_path / "whole.zip", {"a.pickle": plain + b"\0" * 4000}, zipfile.ZIP_STORED)
    whole = (tmp_path / "whole.zip").read_bytes()
    at = whole.index(plain) + len(plain) + 2000
    (tmp_path / "changed.zip").write_bytes(whole[:at] + b"\1" + whole[at + 1:])
    packed = lzma.compress(plain)
    (tmp_path / "changed.xz").write_bytes(packed[:2000] + bytes([packed[2000] ^ 1]) + packed[2001:])
    (tmp_path / "cut.xz").write_bytes(packed[:3000])
    (tmp_path / "cut.zip").write_bytes(whole[:-10])
    page = next(iter(readers_of_pytorch().values())).trace_plot(pickle.loads(plain))
    (tmp_path / "cut.html").write_text(page[: len(page) // 2])
    for name, words in {
        "changed.zip": "a checksum is wrong", "changed.xz": "", "cut.xz": "", "cut.zip": "is damaged or was cut",
        "cut.html": "cut",
    }.items():
        done = run_command("replay", tmp_path / name)
        assert done.returncode == 5 and words in done.stderr, (name, done.stderr)


def test_bombs_are_read_in_bounded_memory_or_refused(tmp_path):
    """Spaces before a snapshot in JSON, more than memory; and an xz dictionary of 1 GiB."""
    resource = pytest.importorskip("resource")
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    spaces = b"{" + b" " * MEMORY_BYTES + b'"segments": []}'
    (tmp_path / "spaces.json.xz").write_bytes(lzma.compress(spaces, preset=0))
    packed = lzma.compress(b"{}")
    # The block header: its size, flags, the filter and the size of its dictionary, then a checksum.
    header = bytearray(packed[12:20])
    assert header[:4] == b"\2\0\x21\1"
    header[4] = 37  # 1 GiB
    (tmp_path / "dictionary.xz").write_bytes(packed[:12] + header + struct.pack("<I", zlib.crc32(header)) + packed[24:])
    for name, code in {"spaces.json.xz": 0, "dictionary.xz": 5}.items():
        done = subprocess.run([COMMAND, "replay", tmp_path / name], capture_output=True, text=True, preexec_fn=limit)
        assert done.returncode == code, (name, done.stderr[-500:])
