"""Archives for the tests of gpumemtrace.sql, and the engines that answer questions about them."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

from conftest import FULL, REPOSITORY, gpumemtrace
from page_runs import GOLDEN, record
from readers import read_with_python, reader_program, run_reader, skip_or_fail

HERE = Path(__file__).parent
PACKAGE = REPOSITORY / "python"
#: The long checks install the other.
ENGINES = ("duckdb", "spark") if FULL else ("duckdb",)
#: Spark compiles each part of a query to Java, which takes seconds and gains nothing here.
SPARK_SETTINGS = "spark.sql.codegen.wholeStage false\nspark.sql.codegen.factoryMode NO_CODEGEN\n"


class Engines:
    """A process with all engines, which is started once."""

    def __init__(self, folder):
        (folder / "spark-defaults.conf").write_text(SPARK_SETTINGS)
        self.log = open(folder / "engines.log", "w+")
        env = {key: value for key, value in os.environ.items() if not key.startswith(("GPUMEMTRACE_", "LD_", "PYTHON"))}
        env |= {"PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1", "SPARK_CONF_DIR": str(folder)}
        self.process = subprocess.Popen([reader_program("python"), HERE / "sql_engines.py"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True, env=env, cwd=folder)

    def ask(self, archive, name, engine="duckdb", **parameters):
        """Returns the answer of the engine: `rows`, or `error` and `code`."""
        request = {"archive": str(archive), "name": name, "engine": engine, "parameters": parameters}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            pytest.fail(f"the process with the engines ended: {self.log.read()[-3000:]}")
        return json.loads(line)

    def rows(self, archive, name, engine="duckdb", **parameters):
        answer = self.ask(archive, name, engine, **parameters)
        assert "rows" in answer, answer
        return answer["rows"]


@dataclass
class ArchivedRun:
    """A run of an archive: its traces in the order of their ranks, and the commit it is given."""

    name: str
    traces: list
    commit: str

    @cached_property
    def report(self):
        return json.loads(gpumemtrace("replay", *self.traces, "--json"))

    def devices(self):
        """Returns the devices with tensors, each with its rank."""
        return [device for device in self.report["devices"] if device["peak"]["live_bytes"] is not None]

    def expected(self):
        """Returns by rank what the report says about columns of `runs` and the table `categories`."""
        by_rank = {}
        for number, trace in enumerate(self.report["traces"]):
            devices = [device for device in self.report["devices"] if device["trace"] == number]
            most = lambda name: max((device["peak"][name] for device in devices if device["peak"][name] is not None), default=None)
            # Each GPU with memory of the driver has a residual here.
            used = max(((device["peak"]["device_bytes"] + device["residual"]["bytes"], device["residual"]["bytes"], device["residual"]["source"])
                        for device in devices if device["peak"]["device_bytes"] is not None and device["residual"]), default=(None,) * 3)
            worst = next((one for one in self.report["verdicts"] if one["trace"] == number), {"severity": None, "summary": None})
            columns = {"card": devices[0]["name"] if devices else None,
                       "card_bytes": devices[0]["total_bytes"] if devices else None, "peak_live_bytes": most("live_bytes"),
                       "peak_reserved_bytes": most("reserved_bytes"), "peak_device_bytes": most("device_bytes"),
                       "peak_used_bytes": used[0], "peak_unaccounted_bytes": used[1], "unaccounted_source": used[2],
                       "leaks": sum(leak["trace"] == number for leak in self.report["leaks"]), "ooms": trace["events"]["oom"],
                       "worst_severity": worst["severity"], "worst_finding": worst["summary"]}
            categories = {(peak["device"], share["category"], share["bytes"], share["blocks"])
                          for peak in self.report["peak"] if peak["trace"] == number for share in peak["categories"]}
            by_rank[number] = {"runs": columns, "categories": categories}
        return by_rank


@dataclass
class Archive:
    """An archive, and the reports of its runs."""

    folder: Path
    runs: list = field(default_factory=list)

    def add(self, traces, commit):
        """Exports the traces of one run, which are in the order of their ranks."""
        known = {path.name for path in self.folder.glob("runs/*")}
        gpumemtrace("export", "parquet", *traces, "-o", self.folder)
        [folder] = {path.name for path in self.folder.glob("runs/*")} - known
        run = ArchivedRun(folder.partition("=")[2], traces, commit)
        self.runs.append(run)
        places = (f"{folder}/rank={rank}" for rank in range(len(traces)))
        set_columns(self.folder, {place: {"runs": {"git_commit": commit}} for place in places})
        return run


def need_engines():
    """Skips the test if there is no environment with the engines, or no Java for Spark."""
    reader_program("python")
    if "spark" in ENGINES and shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        skip_or_fail("Java is not installed (Debian's openjdk-17-jre-headless)")


def export_runs(folder):
    """Returns an archive of real runs: short, with a leak in one of two ranks, and out of memory."""
    archive = Archive(folder / "archive")
    archive.add([shutil.copy(GOLDEN / "cuda-train.trace", folder)], "aaaa")
    ranks = []
    for rank, leak in enumerate(["none", "hook"]):
        ranks.append(record(folder, "training/train.py", "--steps", 30, "--leak", leak, "--quick-exit",
                            trace=f"run.rank{rank}.trace", RANK=rank, WORLD_SIZE=2, SIMGPU_CONTEXT_BYTES=450 << 20))
    archive.add(ranks, "bbbb")
    (folder / "oom").mkdir()
    archive.add([record(folder / "oom", "memory/oom_growth.py", "validation", SIMGPU_MEM="2G")], "cccc")
    return archive


def synthesize(folder, rows, runs, ranks):
    """Returns an archive of scripts/benchmarks/history."""
    command = [reader_program("python"), REPOSITORY / "scripts" / "benchmarks" / "history", "--only-write", "--keep", folder,
               "--rows", rows, "--runs", runs, "--ranks", ranks]
    run_reader(command)
    return Archive(folder)


def read_table(archive, table):
    """Returns the rows of a table, with `run` and `rank`."""
    script = ("import json, sys, pyarrow, pyarrow.dataset as dataset\n"
              "schema = pyarrow.schema([('run', pyarrow.string()), ('rank', pyarrow.int64())])\n"
              "table = dataset.dataset(sys.argv[1], partitioning=dataset.partitioning(schema, flavor='hive')).to_table()\n"
              "print(json.dumps(table.to_pylist()))\n")
    return read_with_python(script, archive / table)


def set_columns(archive, values):
    """Sets columns of `runs` and rows of `categories` by `run=RUN/rank=RANK`."""
    run_reader([reader_program("python"), HERE / "archive_columns.py", archive], input=json.dumps(values))


def remove_rows(folder):
    """Replaces all tables of an archive by empty ones."""
    script = ("import sys, pathlib, pyarrow.parquet as parquet\n"
              "for file in pathlib.Path(sys.argv[1]).rglob('*.parquet'):\n"
              "    parquet.write_table(parquet.ParquetFile(file).read().slice(0, 0), file)\n")
    run_reader([reader_program("python"), "-c", script, folder])


_made = {}


def _make_once(name, make):
    """Two test files import these fixtures, and each would make its own engines and archives."""
    if name not in _made:
        _made[name] = make()
    return _made[name]


@pytest.fixture(scope="session")
def engines(tmp_path_factory):
    need_engines()
    return _make_once("engines", lambda: Engines(tmp_path_factory.mktemp("engines")))


@pytest.fixture(scope="session")
def exported(tmp_path_factory, engines):
    """An archive of real exports. Tests must not change it."""
    return _make_once("exported", lambda: export_runs(tmp_path_factory.mktemp("exports")))


@pytest.fixture(scope="session")
def synthesized(tmp_path_factory, engines):
    """An archive of 40 processes with 5,000 allocations each. Tests must not change it."""
    make = lambda: synthesize(tmp_path_factory.mktemp("synthesized") / "archive", 200_000, 20, 2)
    return _make_once("synthesized", make)
