"""`serve-metrics`: Prometheus reads from it what PyTorch counts. Hostile clients and damaged traces
do not stop it."""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from conftest import COMMAND, DRIVER, REPOSITORY, VENVS, WORKLOADS, environment, gpumemtrace, parse_fields
from durability_case import wait_until
from readers import skip_or_fail

MIB = 1 << 20
DASHBOARD = REPOSITORY / "docs/exports/grafana-dashboard.json"
RULES = REPOSITORY / "docs/exports/prometheus-rules.yml"
PAGE = REPOSITORY / "docs/commands/serve-metrics.md"
CONTEXT_BYTES = 450 * MIB
SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")


class Server:
    """A running `serve-metrics` on a free port."""

    def __init__(self, *arguments, **how):
        self.process = subprocess.Popen([COMMAND, "serve-metrics", "--listen", "127.0.0.1:0", *map(str, arguments)],
                                        stderr=subprocess.PIPE, text=True, **how)
        line = self.process.stderr.readline()
        assert (found := re.search(r"http://(127.0.0.1):(\d+)/metrics", line)), line
        self.address = found[1], int(found[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def text(self):
        with urllib.request.urlopen("http://%s:%d/metrics" % self.address, timeout=30) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            return answer.read().decode()

    def series(self):
        """Returns name, labels and value of each series."""
        lines = [SAMPLE.fullmatch(line) for line in self.text().splitlines() if not line.startswith("#")]
        return [(line["name"], dict(re.findall(r'(\w+)="([^"]*)"', line["labels"] or "")), float(line["value"])) for line in lines]

    def samples(self, trace=None):
        """Returns values by name, of the trace with this file name if one is given."""
        series = self.series()
        ids = [labels["trace_id"] for name, labels, _ in series if name == "gpumemtrace_run_info" and labels["trace"] == trace]
        return {name: value for name, labels, value in series if trace is None or labels.get("trace_id") in ids}

    def has_connection(self, client_port):
        """True until the server's end of a connection is closed."""
        ends = [line.split()[1:3] for line in open("/proc/net/tcp")]
        return any((here[-4:], there[-4:]) == (f"{self.address[1]:04X}", f"{client_port:04X}") for here, there in ends)

    def connect(self, data=b""):
        client = socket.create_connection(self.address, timeout=30)
        client.sendall(data)
        return client

    def answer(self, data):
        with self.connect(data) as client:
            return b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()


class DriverProgram:
    """Allocates one MiB per turn by driver calls; a program without PyTorch."""

    def __init__(self, folder, name="run.trace", turns=1000, **extra):
        folder.mkdir(exist_ok=True)
        driver = folder / "libcuda.so.1"
        if not driver.exists():
            driver.symlink_to(DRIVER)
        self.trace = folder / name
        self.process = subprocess.Popen(
            [sys.executable, WORKLOADS / "driver/driver_leak.py", driver, str(turns)], cwd=folder, text=True,
            env=environment(folder, GPUMEMTRACE_OUTPUT=self.trace, **extra), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )

    def turns(self, last):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        while self.process.stdout.readline() != f"turn {last}\n":
            assert self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.communicate()


class Prometheus:
    """Debian's Prometheus, which scrapes a server once a second and evaluates the shipped alerts."""

    def __init__(self, folder, server):
        self.program = shutil.which("prometheus") or skip_or_fail("prometheus is not installed (Debian's package prometheus)")
        self.folder, self.server = folder, server
        self.start()

    def start(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (self.folder / "prometheus.yml").write_text(
            f"global:\n  evaluation_interval: 1s\nrule_files: [{json.dumps(str(RULES))}]\n"
            "scrape_configs:\n  - job_name: gpumemtrace\n    scrape_interval: 1s\n    scrape_timeout: 1s\n"
            "    static_configs:\n      - targets: [\"%s:%d\"]\n" % self.server.address)
        self.process = subprocess.Popen(
            [self.program, f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
             f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def close(self):
        self.process.kill()
        self.process.wait()

    def query(self, expression):
        """Returns the results of an instant query. An expression that does not parse raises."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]["result"]

    def wait_for(self, expression, check):
        """Waits until the value of an expression is right; `None` without a result."""
        def is_right():
            try:
                results = self.query(expression)
            except (urllib.error.URLError, ConnectionError):
                results = []  # It is starting, or not ready.
                if self.process.poll() is not None:
                    self.start()  # Another program has taken the port.
            return check(float(results[0]["value"][1]) if results else None)
        wait_until(is_right, expression)

    def series(self, expression):
        """Returns the results as soon as there are some: after a late scrape there are none."""
        return wait_until(lambda: self.query(expression), expression)

    def value(self, expression):
        [result] = self.series(expression)
        return float(result["value"][1])

    def wait_for_scrape(self):
        """Waits for a scrape that began after now."""
        now = time.time()
        self.wait_for("timestamp(gpumemtrace_events_total)", lambda value: value is not None and value > now)


class TorchProgram:
    """A PyTorch program under `gpumemtrace run`, which prints its statistics after each stage."""

    def __init__(self, torch_version, folder):
        python = Path(VENVS[torch_version]) / "bin" / "python"
        self.process = subprocess.Popen(
            [COMMAND, "run", "-o", folder / "run.trace", "--", python, WORKLOADS / "memory/stages.py"], cwd=folder,
            env=environment(folder, traced=False, RANK="5", SIMGPU_MEM="2G", SIMGPU_CONTEXT_BYTES=CONTEXT_BYTES), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, start_new_session=True,
        )

    def statistics(self, stage=None):
        if stage:
            self.process.stdin.write(f"{stage}\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the program has ended"
        return json.loads(line)

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def assert_equal_to_pytorch(value, seen):
    """Compares all values that PyTorch knows; `value` returns the value of a metric."""
    allocated, reserved, requested = (seen[f"{kind}_bytes.all.current"] for kind in ("allocated", "reserved", "requested"))
    expected = {
        "gpumemtrace_allocated_bytes": allocated,
        "gpumemtrace_reserved_bytes": reserved,
        "gpumemtrace_unused_reserved_bytes": reserved - allocated,
        "gpumemtrace_gap_bytes": reserved - requested,
        "gpumemtrace_device_capacity_bytes": seen["total"],
        "gpumemtrace_unaccounted_bytes": CONTEXT_BYTES,
        "gpumemtrace_oom_errors_total": seen["num_ooms"],
        "gpumemtrace_lost_events_total": 0,
        "gpumemtrace_trace_running": 1,
    }
    assert {name: value(name) for name in expected} == expected


@pytest.mark.slow("waits for several scrapes")
def test_prometheus_scrapes_what_pytorch_counts(torch_version, tmp_path):
    traces, own = tmp_path / "traces", tmp_path / "prometheus"
    traces.mkdir(), own.mkdir()
    with Server(traces) as server:
        prometheus, program = Prometheus(own, server), TorchProgram(torch_version, traces)
        try:
            start = program.statistics()
            prometheus.wait_for_scrape()
            assert_equal_to_pytorch(prometheus.value, start)
            [series] = prometheus.series("gpumemtrace_allocated_bytes")
            labels = series["metric"]
            assert (labels["rank"], labels["device"], labels["host"]) == ("5", "0", socket.gethostname())
            [info] = prometheus.series("gpumemtrace_run_info")
            assert info["metric"]["trace_id"] == labels["trace_id"] and "trace" not in labels
            assert (info["metric"]["trace"], info["metric"]["torch"].partition("+")[0]) == ("run.trace", torch_version)

            # A tensor that lives for microseconds, between two scrapes.
            spiked = program.statistics("spike")
            prometheus.wait_for_scrape()
            assert_equal_to_pytorch(prometheus.value, spiked)
            for kind in ("allocated", "reserved"):
                peak = spiked[f"{kind}_bytes.all.peak"]
                assert prometheus.value(f"max_over_time(gpumemtrace_{kind}_max_bytes[5m])") == peak
                assert prometheus.value(f"gpumemtrace_{kind}_peak_bytes") == peak
            assert spiked["allocated_bytes.all.peak"] > spiked["allocated_bytes.all.current"] + 290 * MIB
            assert prometheus.value("gpumemtrace_driver_bytes") >= spiked["reserved_bytes.all.current"]

            # Without further blocks, only the segments' events show this.
            emptied = program.statistics("cache")
            assert emptied["reserved_bytes.all.current"] < spiked["reserved_bytes.all.current"]
            prometheus.wait_for_scrape()
            assert_equal_to_pytorch(prometheus.value, emptied)

            trained = program.statistics("steps 130")
            prometheus.wait_for_scrape()
            assert_equal_to_pytorch(prometheus.value, trained)
            # The first steps, which allocate what stays, are out of the window by now.
            assert prometheus.value("gpumemtrace_growth_per_step_bytes") == MIB
            assert prometheus.value("gpumemtrace_steps_total") == 130

            failed = program.statistics("oom")
            prometheus.wait_for_scrape()
            assert failed["num_ooms"] == 1
            assert_equal_to_pytorch(prometheus.value, failed)
            assert prometheus.value("time() - gpumemtrace_last_event_timestamp_seconds") < 30

            assert_dashboard_has_data(prometheus)
            assert_promtool_accepts(server.text())

            program.kill()
            prometheus.wait_for("gpumemtrace_trace_running", lambda value: value == 0)
            assert prometheus.value("gpumemtrace_allocated_bytes") == failed["allocated_bytes.all.current"]
        finally:
            program.process.kill()
            prometheus.close()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        assert server.process.stderr.read() == ""


def promtool(*arguments, **how):
    """Runs Prometheus' own checks; returns the exit code and what it printed."""
    program = shutil.which("promtool") or skip_or_fail("promtool is not installed (Debian's package prometheus)")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60, **how)
    return done.returncode, done.stdout + done.stderr


def assert_promtool_accepts(text):
    """Names, types, units and help of the metrics follow Prometheus' conventions."""
    assert promtool("check", "metrics", input=text) == (0, "")


def dashboard_expressions():
    """Returns the expressions of the Grafana dashboard with everything selected."""
    dashboard = json.loads(DASHBOARD.read_text())
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert {name for expression in found for name in re.findall(r"\$(\w+)", expression)} <= variables
    return [re.sub(r"\$\w+", ".*", expression) for expression in found]


def assert_dashboard_has_data(prometheus):
    """Each expression of the Grafana dashboard returns data, and it shows each metric."""
    for expression in dashboard_expressions():
        prometheus.series(expression)
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus.port}/api/v1/label/__name__/values", timeout=30) as answer:
        names = {name for name in json.load(answer)["data"] if name.startswith("gpumemtrace_") and not name.endswith("_info")}
    # The program has not ended.
    assert metrics_in(dashboard_expressions()) - {"gpumemtrace_exit_code"} == names


def metrics_in(expressions):
    return {name for expression in expressions for name in re.findall(r"gpumemtrace_\w+", expression)}


def test_promtool_accepts_the_rules_and_the_dashboard(tmp_path):
    code, said = promtool("check", "rules", RULES)
    assert code == 0 and "SUCCESS: 5 rules found" in said, said
    # Recording rules take what Grafana asks.
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(dashboard_expressions())]
    (tmp_path / "dashboard.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    code, said = promtool("check", "rules", tmp_path / "dashboard.yml")
    assert code == 0 and f"SUCCESS: {len(rules)} rules found" in said, said


def test_shipped_alerts_fire_when_they_should():
    code, said = promtool("test", "rules", Path(__file__).parent / "prometheus_rules_test.yml")
    assert code == 0 and "SUCCESS" in said, said


def test_page_shows_the_rule_of_full_cards():
    """The page and the alert subtract contexts in the same way, and the page links the rules."""
    page, rules = (" ".join(path.read_text().split()) for path in (PAGE, RULES))
    [[shown]] = [re.findall(r"```text (\(gpumemtrace_driver_max_bytes .*?) ```", page)]
    assert f"{shown} labels:" in rules and "(../exports/prometheus-rules.yml)" in page
    metrics = metrics_in([rules]) | metrics_in(dashboard_expressions())
    assert [name for name in metrics if f"`{name}`" not in page] == []


@pytest.mark.slow("waits for several scrapes")
def test_alert_of_a_program_that_fails_before_the_first_scrape(torch_version, tmp_path):
    traces, own = tmp_path / "traces", tmp_path / "prometheus"
    traces.mkdir(), own.mkdir()
    with Server(traces) as server:
        # Prometheus starts after the program has ended, and never sees the counter at 0.
        code = "import torch\nkept = torch.empty(1 << 20, device='cuda')\ntorch.empty(1 << 40, dtype=torch.uint8, device='cuda')\n"
        command = [COMMAND, "run", "-o", traces / "run.trace", "--", Path(VENVS[torch_version]) / "bin" / "python", "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path, traced=False), capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and "OutOfMemoryError" in done.stderr
        prometheus = Prometheus(own, server)
        try:
            for alert in ("GpuOutOfMemory", "GpuProgramFailed"):
                prometheus.wait_for(f'ALERTS{{alertname="{alert}", alertstate="firing"}}', lambda value: value == 1)
            assert prometheus.value("gpumemtrace_exit_code") == 1
            assert prometheus.value("gpumemtrace_oom_errors_total") == 1
            assert 0 <= prometheus.value("time() - gpumemtrace_last_oom_timestamp_seconds") < 120
            # What this alert was before.
            assert prometheus.query("increase(gpumemtrace_oom_errors_total[10m]) > 0") == []
        finally:
            prometheus.close()


def test_memory_beyond_driver_calls_is_that_of_the_last_sample(tmp_path):
    program = DriverProgram(tmp_path / "traces", turns=20, SIMGPU_CONTEXT_BYTES=CONTEXT_BYTES)
    with Server(tmp_path / "traces") as server:
        program.turns(9)
        samples = wait_until(lambda: (now := server.samples()).get("gpumemtrace_unaccounted_bytes") and now, "a sample")
        # Small blocks are rounded to pages of 2 MiB, which is in no call either.
        assert 0 <= samples["gpumemtrace_unaccounted_bytes"] - CONTEXT_BYTES < 10 * 2 * MIB
        program.turns(19)
        program.process.communicate()
        last = wait_until(lambda: (now := server.samples())["gpumemtrace_trace_running"] == 0 and now, "the end of the run")
    lines = [parse_fields(line) for line in gpumemtrace("dump", "--totals", program.trace).splitlines() if "kind=memory_sample " in line]
    residuals = [int(line["size"]) - int(dict(part.split(":") for part in line["held"].split(",") if part).get("0", 0)) for line in lines]
    assert last["gpumemtrace_unaccounted_bytes"] == residuals[-1]
    assert json.loads(gpumemtrace("replay", program.trace, "--json"))["devices"][0]["residual_bytes"] in residuals


def test_run_keeps_its_series_when_its_trace_is_renamed(tmp_path):
    folder = tmp_path / "traces"
    program = DriverProgram(folder)
    identity = lambda: {labels["trace_id"] for name, labels, _ in server.series() if name == "gpumemtrace_driver_bytes"}
    with Server(folder) as server:
        program.turns(9)
        [trace_id] = identity()
        assert len(trace_id) == 32
        program.trace.rename(folder / "kept.trace")
        program.turns(19)
        samples = server.samples("kept.trace")
        assert (samples["gpumemtrace_driver_max_bytes"], samples["gpumemtrace_driver_bytes"]) == (24 * MIB, 20 * MIB)
        # Events reach the server from the ring file, and maxima are not those of the whole run.
        (folder / "kept.trace").rename(folder / "again.trace")
        samples = server.samples("again.trace")
        assert (samples["gpumemtrace_driver_max_bytes"], samples["gpumemtrace_trace_running"]) == (20 * MIB, 1)
        assert (identity(), server.samples("kept.trace"), server.samples("run.trace")) == ({trace_id}, {}, {})
        # A copy has series of its own, and takes none from the run.
        shutil.copy(folder / "again.trace", folder / "a copy.trace")
        names = lambda: {labels["trace"]: labels["trace_id"] for name, labels, _ in server.series() if name == "gpumemtrace_run_info"}
        both = {"again.trace": trace_id, "a copy.trace": f"{folder}/a copy.trace"}
        assert names() == both and server.samples("again.trace")["gpumemtrace_trace_running"] == 1
        assert_promtool_accepts(server.text())
        program.kill()
        wait_until(lambda: server.samples("again.trace")["gpumemtrace_trace_running"] == 0, "the end of the run")
        assert names() == both
    # A server that finds both keeps them apart, too.
    with Server(folder / "again.trace", folder / "a copy.trace") as server:
        assert sorted(names().values()) == sorted([f"{folder}/again.trace", trace_id])


@pytest.mark.parametrize("end, code", [("sys.exit(3)", 3), ("os._exit(4)", 4), ("os.kill(os.getpid(), 9)", 137), ("", 0)])
def test_exit_code_of_an_ended_program(tmp_path, end, code):
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "libcuda.so.1").symlink_to(DRIVER)
    (tmp_path / "ends.py").write_text(
        "import ctypes, os, sys\n"
        f"driver, context = ctypes.CDLL({str(folder / 'libcuda.so.1')!r}), ctypes.c_void_p()\n"
        "driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context)\n"
        "driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 20))\n"
        f"print(flush=True)\nsys.stdin.readline()\n{end}\n")
    with Server(folder) as server:
        program = subprocess.Popen([COMMAND, "run", "-o", folder / "run.trace", "--", sys.executable, tmp_path / "ends.py"], cwd=tmp_path,
                                   env=environment(tmp_path, traced=False), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        program.stdout.readline()
        samples = server.samples()
        assert samples["gpumemtrace_trace_running"] == 1 and "gpumemtrace_exit_code" not in samples
        program.communicate("\n")
        samples = wait_until(lambda: "gpumemtrace_exit_code" in (now := server.samples()) and now, "the exit code")
        assert samples["gpumemtrace_exit_code"] == code
        wait_until(lambda: server.samples()["gpumemtrace_trace_running"] == 0, "the end of the run")


def test_driver_memory_of_a_program_without_pytorch_and_its_end(tmp_path):
    folder = tmp_path / "traces"
    program = DriverProgram(folder)
    with Server(folder, "--keep-ended", "4") as server:
        program.turns(9)
        samples = server.samples()
        assert (samples["gpumemtrace_driver_bytes"], samples["gpumemtrace_driver_peak_bytes"]) == (10 * MIB, 14 * MIB)
        assert samples["gpumemtrace_driver_max_bytes"] == 14 * MIB
        program.turns(19)
        # Each turn frees 4 MiB again. A reading that is delivered begins the next maximum.
        assert server.samples()["gpumemtrace_driver_max_bytes"] == 24 * MIB
        assert server.samples()["gpumemtrace_driver_max_bytes"] == 20 * MIB
        # What is unknown has no sample.
        assert not {name for name in samples if re.search("allocated|reserved|gap|growth", name)}
        program.kill()
        samples = wait_until(lambda: (now := server.samples())["gpumemtrace_trace_running"] == 0 and now, "the end of the run")
        assert samples["gpumemtrace_driver_bytes"] == 20 * MIB
        # A process that is killed without `gpumemtrace run` leaves no status.
        assert "gpumemtrace_exit_code" not in samples
        wait_until(lambda: "gpumemtrace_trace_running" not in server.samples(), "a run that is no longer served")
        # A run that had ended before is not read, and a new one is picked up.
        program = DriverProgram(folder, "second.trace")
        program.turns(9)
        assert server.samples("second.trace")["gpumemtrace_driver_bytes"] == 10 * MIB
        assert server.samples("run.trace") == {}
        program.kill()


def is_connected(client):
    """True if the server has neither answered nor closed."""
    return not select.select([client], [], [], 0)[0]


def test_hostile_clients_do_not_delay_a_scrape(tmp_path):
    with Server(tmp_path) as server:
        def scrape_beside_others():
            """Scrapes beside clients without a request. Returns them if the last ones had their
            five seconds still: a busy machine may need more. The server drops the first ones."""
            idle = [server.connect() for _ in range(200)]
            half = [server.connect(b"GET /metrics HTTP/1.1\r\nHost: local") for _ in range(50)]
            for _ in range(5):
                assert "gpumemtrace_skipped_traces 0" in server.text()
            return all(map(is_connected, [*idle, *half][-100:])) and [*idle, *half]

        others = wait_until(scrape_beside_others, "scrapes before the end of hostile clients")
        assert server.answer(b"GET /metrics HTTP/1.1\r\n" + b"X-Long: " + b"a" * 7000 + b"\r\n" + b"B: " + b"b" * 7000).startswith("HTTP/1.1 431 ")
        assert server.answer(b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1").startswith("HTTP/1.1 400 ")
        assert server.answer(b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello").startswith("HTTP/1.1 405 ")
        assert server.answer(b"GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n").startswith("HTTP/1.1 403 ")
        assert server.answer(b"GET /else HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 404 ")
        # Clients that ask and leave, and clients that never take their answer.
        for _ in range(50):
            server.connect(b"GET /metrics HTTP/1.1\r\n\r\n").close()
        deaf = [server.connect(b"GET /metrics HTTP/1.1\r\n\r\n") for _ in range(50)]
        # A client that sends a byte now and then has five seconds in all.
        slow, begin = server.connect(b"GET /met"), time.monotonic()

        def is_closed():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                slow.sendall(b"r")
                return not is_connected(slow)
            return True

        wait_until(is_closed, "the end of a slow client")
        assert time.monotonic() - begin > 3
        assert "gpumemtrace_skipped_traces 0" in server.text()
        for client in [*others, *deaf, slow]:
            client.close()
        used = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        assert (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK") < 2, "seconds of processor time"


def test_damaged_traces_do_not_end_the_server(tmp_path):
    program = DriverProgram(tmp_path / "made", turns=20)
    program.turns(9), program.turns(19)
    program.process.communicate()
    whole = program.trace.read_bytes()
    folder = tmp_path / "served"
    folder.mkdir()
    with Server(folder) as server:
        cut, changed = folder / "cut.trace", folder / "changed.trace"
        cut.write_bytes(whole[:len(whole) * 2 // 3])
        changed.write_bytes(whole[:400] + bytes(300) + whole[700:])
        (folder / "words.trace").write_text("no trace")
        (folder / "empty.trace").touch()
        (folder / "folder.trace").mkdir()
        (folder / "dangling.trace").symlink_to(folder / "nothing")
        os.mkfifo(folder / "pipe.trace")
        samples = server.samples()
        assert samples["gpumemtrace_unreadable_files"] == 1
        assert "gpumemtrace_events_total" in server.samples("cut.trace") and "gpumemtrace_events_total" in server.samples("changed.trace")
        cut.write_bytes(whole)
        assert server.samples("cut.trace")["gpumemtrace_driver_bytes"] == 20 * MIB
        with cut.open("r+b") as file:
            file.truncate(100)
        changed.write_text("no trace any more, and longer than the header")
        assert server.samples()["gpumemtrace_unreadable_files"] >= 1
        for path in (cut, changed):
            path.unlink()
        assert "gpumemtrace_trace_running" not in server.samples()
        shutil.rmtree(folder)
        assert server.samples()["gpumemtrace_unreadable_files"] == 0
        folder.mkdir()
        (folder / "whole.trace").write_bytes(whole)
        assert server.samples("whole.trace")["gpumemtrace_driver_bytes"] == 20 * MIB
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=30) == 0


@pytest.mark.parametrize("arguments, code, words", [
    (["nowhere"], 5, "nowhere cannot be read: No such file or directory"),
    (["words.trace"], 5, "words.trace is not a gpumemtrace trace"),
    (["/dev/null"], 5, "/dev/null is neither a trace nor a folder"),
    ([".", "--listen", "0.0.0.0:0"], 2, "--allow-remote"),
    ([".", "--listen", "192.0.2.1:0", "--allow-remote"], 2, "cannot listen on 192.0.2.1:0"),
    ([".", "--listen", "TAKEN"], 2, "Address already in use"),
    ([".", "--listen", "localhost"], 2, "invalid value"),
])
def test_what_cannot_be_served_is_refused_in_one_sentence(tmp_path, arguments, code, words):
    (tmp_path / "words.trace").write_text("no trace at all")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        done = subprocess.run([COMMAND, "serve-metrics", *(address if word == "TAKEN" else word for word in arguments)],
                              cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "invalid value" in words or len(done.stderr.splitlines()) == 1
