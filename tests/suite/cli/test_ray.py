"""Actors of a real Ray on the simulated GPU: each worker that uses a GPU has its own trace, and
Ray's own processes have none."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import COMMAND, LIBRARY, VENVS, environment, gpumemtrace
from installed_package import trainers_of

pytestmark = pytest.mark.long

WORKERS, LEAKING = 4, 2
DRIVER = """
import json
import os
import sys

import ray


class Worker:
    def identify(self):
        return os.getpid()

    def train(self, leaks):
        import torch

        model = torch.nn.Linear(512, 512).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = []
        for step in range(50):
            model(torch.ones(64, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if leaks:
                kept.append(torch.empty(4 << 20, dtype=torch.uint8, device="cuda"))  # line: leak


job, actors, leaking = map(json.loads, sys.argv[1:])
ray.init(num_cpus=1, num_gpus=len(actors), include_dashboard=False, object_store_memory=80 << 20, runtime_env=job)
Actor = ray.remote(num_cpus=0.1, num_gpus=1)(Worker)
workers = [Actor.options(runtime_env=own).remote() for own in actors]
print(json.dumps(ray.get([worker.identify.remote() for worker in workers])), flush=True)
ends = [worker.train.remote(number == leaking) for number, worker in enumerate(workers)]
ray.get([end for number, end in enumerate(ends) if number != leaking])
ray.get(ends)
"""
LINE = next(number for number, line in enumerate(DRIVER.splitlines(), 1) if line.endswith("# line: leak"))


def content_of(path):
    """The content of a file, unless Ray has removed it meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


@pytest.fixture
def run_driver(torch_version, tmp_path):
    """Runs the driver with one actor for each of `actors`, which are runtime environments."""
    # The path of a socket in it has at most 107 characters.
    own = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    started = []

    def run(*before, job=None, actors, leaking=None, **extra):
        (tmp_path / "driver.py").write_text(DRIVER)
        (tmp_path / "traces").mkdir()
        env = environment(tmp_path, traced=False, PYTHONPATH=trainers_of(torch_version), HOME=own, RAY_TMPDIR=own,
                          RAY_USAGE_STATS_ENABLED=0, RAY_AUTH_MODE="disabled", SIMGPU_MEM="160M", SIMGPU_LOG="", OMP_NUM_THREADS=1, **extra)
        python = Path(VENVS[torch_version]) / "bin" / "python"
        command = [*before, python, "driver.py", *map(json.dumps, (job or {}, actors, leaking))]
        process = subprocess.Popen(list(map(str, command)), cwd=tmp_path, env=env, text=True, start_new_session=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        output, errors = process.communicate(timeout=240)
        paths = (Path(folder, name) for folder, _, names in os.walk(own) for name in names)
        logs = [path for path in paths if path.is_file() and b"gpumemtrace: " in content_of(path)]
        assert logs == [], "the processes of Ray print nothing of ours"
        assert output, errors[-4000:]
        return process.returncode, json.loads(output.splitlines()[0]), errors

    yield run
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    shutil.rmtree(own, ignore_errors=True)


def traces_of(folder):
    """Returns all traces of a folder together, and each by its name. Nothing else is there."""
    names = {path.name for path in folder.iterdir()} - {f"{path.name}.ring" for path in folder.iterdir()}
    job = json.loads(gpumemtrace("ranks", folder, "--json"))
    assert not job["unreadable"] and not job["incomplete"]
    assert {Path(trace["path"]).name for trace in job["traces"]} == names
    return job, {Path(trace["path"]).name: trace for trace in job["traces"]}


def test_worker_that_leaks_and_dies_is_the_first_cause(run_driver, tmp_path):
    code, pids, errors = run_driver(COMMAND, "run", "-o", "traces/", "--", actors=[{}] * WORKERS, leaking=LEAKING)
    assert code == 1 and "OutOfMemoryError" in errors, errors[-4000:]
    job, traces = traces_of(tmp_path / "traces")
    host = socket.gethostname()
    # Whoever is first gets the name without a process ID.
    [first] = set(pids) - {int(name.split(".")[-2]) for name in traces if name != f"run.{host}.trace"}
    assert set(traces) == {f"run.{host}.trace"} | {f"run.{host}.{pid}.trace" for pid in pids if pid != first}
    assert {trace["pid"] for trace in traces.values()} == set(pids)
    assert all(f"wrote traces/{name};" in errors for name in traces)
    growth, [oom] = job["first_growth"], job["ooms"]
    for cause in (growth, oom):
        assert job["traces"][cause["trace"]]["pid"] == pids[LEAKING] and "driver.py:" in cause["site"]["text"]
    assert f"driver.py:{LINE}" in growth["site"]["text"] and growth["bytes_per_step"] == 4 << 20
    assert f"Growth began in process {pids[LEAKING]} in step " in gpumemtrace("ranks", tmp_path / "traces")
    # The title that Ray gives a worker has no padding.
    assert all(trace["command"] == ["ray::Worker.train"] for trace in traces.values())
    # Each node's summary, merged, is that of all traces.
    parts = []
    for name in traces:
        parts.append(tmp_path / f"{name}.summary")
        gpumemtrace("ranks", tmp_path / "traces" / name, "-o", parts[-1])
    assert json.loads(gpumemtrace("ranks", *parts, "--json")) == job


def test_runtime_environment_records_the_workers_alone(run_driver, tmp_path):
    """As on a cluster that runs already. The node is a task of Slurm, and its workers are none."""
    variables = {"LD_PRELOAD": str(LIBRARY), "GPUMEMTRACE_OUTPUT": f"{tmp_path}/traces/"}
    rank = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    code, pids, errors = run_driver(
        job={"env_vars": variables}, actors=[{}, {"env_vars": rank}],
        SLURM_JOB_ID=41, SLURM_PROCID=0, SLURM_LOCALID=0, SLURM_STEP_NUM_TASKS=2)
    assert code == 0, errors[-4000:]
    job, traces = traces_of(tmp_path / "traces")
    assert {name: (trace["rank"], trace["pid"]) for name, trace in traces.items()} == {
        f"run.41.{socket.gethostname()}.trace": (None, pids[0]), "run.41.rank1.trace": (1, pids[1])}
    assert job["world_size"] == 2 and job["missing_ranks"] == [0]
