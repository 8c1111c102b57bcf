"""Pickles that are damaged, or that want to run code: read in bounded memory, or refused.

GPUMEMTRACE_MUTATIONS sets the number of damaged pickles, GPUMEMTRACE_MUTATION_SEED the first seed.
"""

import gzip
import os
import pickle
import random
import subprocess

import pytest

from conftest import COMMAND
from snapshot_reports import GOLDEN, contents

MUTATIONS = int(os.environ.get("GPUMEMTRACE_MUTATIONS", "600"))
FIRST_SEED = int(os.environ.get("GPUMEMTRACE_MUTATION_SEED", "0"))
BATCH = 200
MEMORY_KIB = 512 << 10
#: Opcodes that name, call or build objects of the program, and those that repeat or jump to data.
OPCODES = b"cR\x81\x92bio\x93\x82\x83\x84PQhjgpqr2()l]}eus.0N\x94\x95\x80JKMGIX\x8c\x8a\x8b\x8dB\x8e"


def plain_bytes(path):
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def smaller(snapshot):
    """The first segments and events: small files are damaged in more places that matter."""
    traces = [[dict(event) for event in trace[:25]] for trace in snapshot["device_traces"]]
    return dict(snapshot, segments=snapshot["segments"][:4], device_traces=traces)


@pytest.fixture(scope="module")
def originals():
    files = [path for path in sorted(GOLDEN.iterdir()) if ".pickle" in path.name]
    whole = [data for data in map(plain_bytes, files) if len(data) < 60_000]
    return whole + [pickle.dumps(smaller(contents(path)), protocol) for path in files for protocol in (2, 3, 4, 5)]


def mutated(data, chance):
    data = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 4, 16])):
        place = chance.randrange(len(data))
        kind = chance.randrange(8)
        if kind == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[place] = chance.randrange(256)
        elif kind == 2:
            data[place] = chance.choice(OPCODES)
        elif kind == 3:
            data[place:place] = bytes([chance.choice(OPCODES)])
        elif kind == 4:
            del data[place : place + chance.randrange(1, 9)]
        elif kind == 5:
            data[place : place + 4] = chance.choice([b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4)])
        elif kind == 6:
            piece = data[place : place + chance.randrange(1, 200)]
            data[place:place] = piece * chance.choice([1, 2, 50])
        elif chance.random() < 0.2:
            del data[place + 1 :]
        if not data:
            data = bytearray(b"\x80")
    return bytes(data)


LOOP = 'ulimit -v "$1"; ulimit -t 20; cd "$2"; for file in *.pickle; do "$0" replay "$file" --json >/dev/null 2>"$file.err"; echo "$file $?"; done'


def test_damaged_pickles_are_read_or_refused(originals, tmp_path):
    codes = {}
    for begin in range(FIRST_SEED, FIRST_SEED + MUTATIONS, BATCH):
        folder = tmp_path / str(begin)
        folder.mkdir()
        for seed in range(begin, min(begin + BATCH, FIRST_SEED + MUTATIONS)):
            chance = random.Random(seed)
            (folder / f"{seed}.pickle").write_bytes(mutated(chance.choice(originals), chance))
        done = subprocess.run(["bash", "-c", LOOP, COMMAND, str(MEMORY_KIB), folder], capture_output=True, text=True)
        for name, code in map(str.split, done.stdout.splitlines()):
            error = (folder / f"{name}.err").read_text(errors="replace")
            assert code in ("0", "5", "6") and "panicked" not in error, (folder / name, code, error)
            # A refusal is one line.
            assert code != "5" or len(error.splitlines()) == 1, (folder / name, error)
            codes[code] = codes.get(code, 0) + 1
        for file in folder.iterdir():
            file.unlink()
    assert sum(codes.values()) == MUTATIONS
    # Damage that no pickle shows, and damage that each shows.
    assert codes["5"] > MUTATIONS // 4 and codes.get("0", 0) + codes.get("6", 0) > 0, codes
    print("exit codes:", codes)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("place", ["segments", "device_traces", "frames", "unknown", "first"])
def test_code_is_refused_and_never_runs(tmp_path, protocol, place):
    made = tmp_path / "made"
    snapshot = smaller(contents(sorted(GOLDEN.glob("*.pickle*"))[0]))
    evil = Evil(made)
    if place == "frames":
        snapshot["device_traces"][0][0]["frames"] = [evil]
    elif place in snapshot:
        snapshot[place].append(evil)
    else:
        snapshot = {"other": evil, **snapshot} if place == "unknown" else [evil]
    file = tmp_path / "evil.pickle"
    file.write_bytes(pickle.dumps(snapshot, protocol))
    done = subprocess.run([COMMAND, "replay", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 5 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    if protocol >= 2:
        assert "GLOBAL" in done.stderr
    assert not made.exists()


def test_nesting_and_counts_are_bounded(tmp_path):
    """A deep nest, a text of 4 GiB that is not there, and a memo entry far away."""
    for name, data in {
        "deep": b"\x80\x04" + b"]" * 5_000_000,
        "tuples": b"\x80\x04N" + b"\x85" * 5_000_000 + b".",
        "text": b"\x80\x04X\xff\xff\xff\xff" + b"a" * 100,
        "text8": b"\x80\x04\x8d" + b"\xff" * 8 + b"a",
        "memo": b"\x80\x04Nr\xfe\xff\xff\xff.",
        "marks": b"\x80\x04" + b"(" * 5_000_000 + b".",
        "long": b"\x80\x04\x8b\xff\xff\xff\x7f.",
        "twice": b"\x80\x04]\x94" + b"(h\x00h\x00h\x00h\x00e\x94" * 40 + b".",
        "gzip": gzip.compress(b"\x80\x04" + b"]" * 200_000_000, 9),
        "json": b'{"segments":' + b"[" * 5_000_000,
    }.items():
        file = tmp_path / f"{name}.pickle"
        file.write_bytes(data)
    done = subprocess.run(["bash", "-c", LOOP, COMMAND, str(MEMORY_KIB), tmp_path], capture_output=True, text=True, timeout=300)
    results = dict(line.split() for line in done.stdout.splitlines())
    assert set(results.values()) == {"5"}, results
    for name in results:
        assert len((tmp_path / f"{name}.err").read_text().splitlines()) == 1
