"""Changes trace files at random and reads each with every command.

A command may refuse a file or report it as incomplete. It must not panic, hang, or take more memory
than the limit. Half of the changed blocks get a right checksum, so that decoders see them.
"""

import dataclasses
import multiprocessing
import os
import random
import resource
import shutil
import struct
import subprocess
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from . import kills
from .hosts import BY_NAME, COMMAND, REPOSITORY, SMALL, TARGET
from .oracle import COMPLETE, INCOMPLETE, UNREADABLE



LIMIT_SECONDS, LIMIT_BYTES = 60, 4 << 30
READERS = [["info"], ["info", "--verify"], ["replay"], ["replay", "--json"], ["dump"], ["html", "--output", "page.html"], ["symbolize", "-o", "copy.trace"]]
BLOCK = struct.Struct("<4sBBHIIII")


def crc_table():
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        yield value


CRC = list(crc_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def blocks_of(data):
    """Yields (offset, length of the stored payload) of the blocks of an undamaged trace."""
    at = 16
    while at + BLOCK.size <= len(data):
        sync, _, _, _, stored, _, _, _ = BLOCK.unpack_from(data, at)
        if sync != b"GMTB" or at + BLOCK.size + stored > len(data):
            return
        yield at, stored
        at += BLOCK.size + stored


def seal(data, at, stored):
    """Writes the right checksums into the header of a block."""
    payload = bytes(data[at + BLOCK.size: at + BLOCK.size + stored])
    struct.pack_into("<I", data, at + 16, crc32c(payload))
    struct.pack_into("<I", data, at + 20, crc32c(bytes(data[at: at + 20])))


def change(data, choice, others):
    """Returns a changed copy of a file."""
    data = bytearray(data)
    how = choice.choice(["bits", "bytes", "cut", "remove", "repeat", "splice", "payload", "payload", "payload", "payload"])
    at, length = choice.randrange(len(data)), choice.choice([1, 4, 24, 300])
    if how == "bits":
        for _ in range(choice.randint(1, 8)):
            data[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
    elif how == "bytes":
        data[at: at + length] = choice.randbytes(length)
    elif how == "cut":
        del data[at:]
    elif how == "remove":
        del data[at: at + length]
    elif how == "repeat":
        data[at:at] = data[at: at + length]
    elif how == "splice":
        data[at:] = choice.choice(others)[at:]
    elif blocks := list(blocks_of(data)):
        at, stored = choice.choice(blocks)
        start, end = at + BLOCK.size, at + BLOCK.size + stored
        for _ in range(choice.randint(1, 4)):
            if stored:
                data[choice.randrange(start, end)] = choice.choice([0, 1, 0x7F, 0x80, 0xFF, choice.randrange(256)])
        seal(data, at, stored)
    return bytes(data)


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))


def read_with_every_command(folder):
    """Returns (exit codes, problems) of all commands on run.trace in a folder."""
    codes, problems = Counter(), []
    for reader in READERS:
        try:
            done = subprocess.run([COMMAND, reader[0], "run.trace", *reader[1:]], cwd=folder, capture_output=True, timeout=LIMIT_SECONDS, preexec_fn=limit)
        except subprocess.TimeoutExpired:
            problems.append(f"{' '.join(reader)} took more than {LIMIT_SECONDS} s")
            continue
        codes[done.returncode] += 1
        if done.returncode not in (COMPLETE, UNREADABLE, INCOMPLETE) or b"panicked" in done.stderr:
            problems.append(f"{' '.join(reader)} exited with {done.returncode}: {done.stderr[-300:].decode(errors='replace')}")
    return codes, problems


def run_batch(seed, numbers, seeds, folder):
    """Tries some changed traces; returns the exit codes and (number, problem) of failures."""
    codes, failures = Counter(), []
    place = folder / f"batch-{numbers[0]}"
    for number in numbers:
        choice = random.Random(f"{seed}.{number}")
        files = choice.choice(seeds)
        changed = choice.choice(sorted(files))
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name, data in files.items():
            others = [other[changed] for other in seeds if changed in other]
            (place / name).write_bytes(change(data, choice, others) if name == changed else data)
        found, problems = read_with_every_command(place)
        codes += found
        if problems:
            failures.append((number, problems))
            kept = TARGET / "soak" / "failures" / f"traces-seed-{seed}-{number}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(place, kept)
    shutil.rmtree(place, ignore_errors=True)
    return codes, failures


def seed_traces(programs, folder):
    """Golden traces, and killed runs with their ring file, short enough to be read quickly."""
    seeds = [{"run.trace": path.read_bytes()} for path in sorted((REPOSITORY / "tests" / "golden").glob("*.trace"))]
    for name, after_ms in [("storm-4", 0.03), ("rotate", 0.3), ("train", 0.05)]:
        place = folder / name
        # Small ring files are read sooner.
        host = dataclasses.replace(BY_NAME[name], environment=BY_NAME[name].environment | SMALL)
        kills.run_host(programs, host, place, "run", after_ms, kills.Life(0, 1, 1))
        seeds.append({path.name: path.read_bytes() for path in place.glob("run*trace*")})
    return seeds


def run(programs, options):
    """Returns the exit code and the result."""
    folder = TARGET / "soak" / f"traces-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    numbers = list(range(options.traces))
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        seeds = pool.submit(seed_traces, programs, folder).result()
        batches = [pool.submit(run_batch, options.seed, numbers[at: at + 20], seeds, folder) for at in range(0, len(numbers), 20)]
        codes, failures = Counter(), []
        for batch in batches:
            found, failed = batch.result()
            codes += found
            failures += failed
    shutil.rmtree(folder)
    for number, problems in failures:
        print(f"FAILED trace {number}: {'; '.join(problems)}")
    print(f"{options.traces:,} changed traces, {sum(codes.values()):,} reads: {codes[COMPLETE]:,} complete, {codes[INCOMPLETE]:,} reported as incomplete, "
          f"{codes[UNREADABLE]:,} refused; {len(failures)} failed")
    result = {"seed": options.seed, "seconds": round(time.monotonic() - began), "traces": options.traces, "reads": sum(codes.values()),
              "complete": codes[COMPLETE], "incomplete": codes[INCOMPLETE], "refused": codes[UNREADABLE], "failed": len(failures)}
    return (1 if failures else 0), result
