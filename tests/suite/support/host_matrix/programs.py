"""The programs of tests/host/programs: their headers, and how they are built.

A header is the program's first comment or docstring: a sentence, and lines `key: value` with these
keys, all optional:

    place: NAME[, NAME]   the kind of folder the program runs in, one run each (places.py)
    needs: WORD[, WORD]   what the machine must have: `root`, a command, or `module NAME`
    env: A=1 B=2          environment variables; $PLACE is the folder
    says: REGEX           the recorder prints lines, which match; otherwise it prints nothing
    trace: KIND           `exact` (default), `counted` (calls may be lost; the trace says how many),
                          `partial` (a loss is allowed and reported), `none`
    stopped: REGEX        the report says why the recording stopped early, which matches
    output: unordered     several processes or threads print, in any order
    link: no              the program is not linked to the driver
    libc: here            the program is not run against an old C library
    differs: REGEX        lines that differ for a reason; the header says which
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from conftest import REPOSITORY

HOST = REPOSITORY / "tests" / "host"
KEYS = ("place", "needs", "env", "says", "trace", "stopped", "output", "link", "libc", "differs")
SOURCES = {".c": "cc", ".cpp": "c++", ".py": None}


@dataclass(frozen=True)
class Program:
    """One file of tests/host/programs."""

    source: Path
    header: dict

    @property
    def name(self):
        return f"{self.source.parent.name}/{self.source.stem}"

    @property
    def is_python(self):
        return self.source.suffix == ".py"

    def value(self, key, default=""):
        return self.header.get(key, default)

    def words(self, key):
        return [word.strip() for word in self.value(key).split(",") if word.strip()]


def read_header(source):
    comment = re.match(r'\s*(?:/\*(.*?)\*/|"""(.*?)""")', source.read_text(), re.S)
    assert comment, f"{source} does not begin with a comment or docstring"
    header = {}
    for line in (comment[1] or comment[2]).splitlines():
        pair = re.fullmatch(r"\s*([a-z]+): (.+?)\s*", line)
        if pair and pair[1] in KEYS:
            header[pair[1]] = pair[2]
    return header


def all_programs():
    sources = sorted(path for path in (HOST / "programs").glob("*/*") if path.suffix in SOURCES)
    return [Program(source, read_header(source)) for source in sources]


@dataclass(frozen=True)
class System:
    """A C library that programs are built for, and our library for it."""

    name: str
    library: Path
    root: Path = None

    def compile(self, source, output, *options):
        """Compiles with the machine's compiler, against the headers and files of the C library."""
        compiler = shutil.which(os.environ.get("CXX", "c++") if source.suffix == ".cpp" else os.environ.get("CC", "cc"))
        if compiler is None:
            raise LookupError("there is no C or C++ compiler")
        if self.root:
            libraries = self.root / "lib"
            options += (f"--sysroot={self.root}", f"-B{self.root}/usr/lib", f"-L{self.root}/usr/lib", f"-L{libraries}",
                        f"-Wl,--disable-new-dtags,-rpath,{libraries}", f"-Wl,--dynamic-linker={libraries}/ld-linux-x86-64.so.2")
            if source.suffix == ".cpp":
                options += ("-nostdinc++", "-std=gnu++98", *(f"-isystem{folder}" for folder in self.cxx_headers()))
        shared = ["-shared", "-fPIC"] if ".so" in output.name else []
        subprocess.run([compiler, "-O1", "-g", "-Wall", "-Werror", "-Wno-return-type", "-D_GNU_SOURCE", *shared, "-o", output, source, f"-L{output.parent}",
                        "-Wl,-rpath,$ORIGIN", *options, "-lpthread", "-ldl"], check=True)
        return output

    def cxx_headers(self):
        folder = next((self.root.parent / "include" / "c++").iterdir())
        return [folder, next(folder.glob("*-linux-gnu"))]


class Builds:
    """The compiled programs of one system, each built when it is first needed."""

    def __init__(self, system, folder):
        self.system, self.folder = system, folder
        system.compile(HOST / "driver.c", folder / "libcuda.so.1", "-Wl,-soname,libcuda.so.1")

    def build(self, program):
        output = self.folder / program.source.stem
        if program.is_python:
            observer = self.folder / "libobserve.so"
            return observer.exists() or self.system.compile(HOST / "observe.c", observer, "-l:libcuda.so.1")
        if not output.exists():
            self.system.compile(program.source, output, *([] if program.value("link") == "no" else ["-l:libcuda.so.1"]))
        return output

    def module(self, name):
        """Compiles tests/host/NAME into a library."""
        return self.system.compile(HOST / name, self.folder / f"{Path(name).stem}.so")
