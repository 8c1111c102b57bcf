"""`serve-metrics` where an answer is lost, and where file locks or the clock of the files mislead."""

import os
import socket
import time

import pytest

from conftest import LIBRARY
from durability_case import Clock, build_programs, wait_until
from test_serve_metrics import MIB, DriverProgram, Server


def leave_at_once(client):
    client.close()


def leave_with_unread_answer(client):
    # The answer is in the kernel's buffer, as after the timeout of a scrape.
    assert client.recv(1, socket.MSG_PEEK)
    client.close()


def leave_in_the_answer(client):
    assert len(client.recv(100)) == 100
    client.close()


@pytest.mark.parametrize("leave", [leave_at_once, leave_with_unread_answer, leave_in_the_answer])
def test_maxima_of_an_answer_that_is_lost_come_again(tmp_path, leave):
    program = DriverProgram(tmp_path / "traces")
    with Server(tmp_path / "traces") as server:
        program.turns(9)
        client = server.connect(b"GET /metrics HTTP/1.1\r\n\r\n")
        port = client.getsockname()[1]
        leave(client)
        wait_until(lambda: not server.has_connection(port), "the end of the connection")
        assert server.samples()["gpumemtrace_driver_max_bytes"] == 14 * MIB
        assert server.samples()["gpumemtrace_driver_max_bytes"] == 10 * MIB
        # A client that closes its end after the request is answered.
        with server.connect(b"GET /metrics HTTP/1.1\r\n\r\n") as client:
            client.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()
        assert answer.startswith("HTTP/1.1 200 ") and "gpumemtrace_driver_max_bytes{" in answer
        program.kill()


@pytest.mark.parametrize("locks", ["none", "local"])
def test_run_goes_on_where_its_lock_cannot_be_seen(tmp_path, locks):
    """The lock of a network file system, as the server sees it (flock_of.c)."""
    bin, folder = tmp_path / "bin", tmp_path / "traces"
    bin.mkdir(), folder.mkdir()
    build_programs(bin, ["flock_of.so", "clock_offset.so"])
    clock = Clock(tmp_path / "clock")
    seen = os.environ | {"LD_PRELOAD": str(bin / "flock_of.so"), "FLOCK_OF": locks}
    with Server(folder, env=seen) as server:
        program = DriverProgram(folder, LD_PRELOAD=f"{bin}/clock_offset.so:{LIBRARY}", **clock.settings)
        for last in (9, 19, 29):
            size = program.trace.stat().st_size if last > 9 else 0
            program.turns(last)
            # The recorder writes events within about five seconds of its clock.
            clock.pass_an_hour()
            wait_until(lambda: program.trace.stat().st_size > size, "events in the trace")
            # The trace is quiet for longer than that of a killed program would be.
            for _ in range(4):
                samples = server.samples("run.trace")
                assert locks == "local" or samples["gpumemtrace_trace_running"] == 1
                time.sleep(0.25)
        # The first quiet seconds with a free lock look like the end of the program.
        assert samples["gpumemtrace_trace_running"] == 1
        assert samples["gpumemtrace_lost_events_total"] == 0
        program.turns(39)
        # These events are only in the ring file so far.
        assert server.samples("run.trace")["gpumemtrace_driver_bytes"] == 40 * MIB
        program.kill()
        assert server.samples("run.trace")["gpumemtrace_trace_running"] == 1


def test_growth_of_a_trace_shows_where_the_clock_of_the_files_is_behind(tmp_path):
    program = DriverProgram(tmp_path / "made", turns=20)
    program.turns(9), program.turns(19)
    program.process.communicate()
    whole, folder = program.trace.read_bytes(), tmp_path / "served"
    folder.mkdir()

    def write(path, data):
        """Gives the file a time from before the server's start, as a file server may."""
        path.with_suffix(".new").write_bytes(data)
        os.utime(path.with_suffix(".new"), (1e9, 1e9))
        path.with_suffix(".new").rename(path)

    write(folder / "ended.trace", whole)
    write(folder / "grows.trace", whole[:len(whole) * 2 // 3])
    with Server(folder) as server:
        assert "gpumemtrace_events_total" not in server.samples()
        write(folder / "late.trace", whole)
        write(folder / "grows.trace", whole)
        for name in ("late.trace", "grows.trace"):
            assert server.samples(name)["gpumemtrace_driver_bytes"] == 20 * MIB
        # A later run moves the finished trace of its name aside.
        (folder / "ended.trace").rename(folder / "ended.1.trace")
        assert server.samples("ended.1.trace") == {}
