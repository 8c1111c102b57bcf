"""Mozilla's profiler-cli, which loads profiles with the code of the Firefox Profiler."""

import json
import os
import re
import signal
import subprocess
from contextlib import contextmanager, suppress

from readers import node_package

ATTEMPTS = 20


class ProfilerCli:
    """A session of profiler-cli with one profile."""

    def __init__(self, folder):
        self.program = ["node", node_package("@firefox-devtools/profiler-cli") / "dist" / "profiler-cli.js"]
        self.env = os.environ | {"PROFILER_CLI_SESSION_DIR": str(folder)}

    def run(self, *arguments):
        done = subprocess.run([*self.program, *map(str, arguments)], capture_output=True, text=True, timeout=120, env=self.env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def load(self, path):
        """Loads a profile. On a busy machine the half second that it waits for its daemon is short."""
        for _ in range(ATTEMPTS):
            done = subprocess.run([*self.program, "load", path], capture_output=True, text=True, timeout=120, env=self.env)
            if done.returncode == 0:
                return
            late = re.search(r"did not become ready.*The daemon may still be running as pid (\d+)", done.stderr, re.DOTALL)
            assert late, done.stdout + done.stderr
            with suppress(ProcessLookupError):
                os.kill(int(late[1]), signal.SIGKILL)
        raise AssertionError(f"profiler-cli did not start in {ATTEMPTS} attempts")

    def query(self, *arguments):
        """Returns what a command prints as JSON."""
        return json.loads(self.run(*arguments, "--json"))

    def bytes_of_functions(self, strategy, thread="t-0"):
        """Returns total and self of each function by name, as a strategy sums up the allocations."""
        self.run("thread", "select", thread)
        found = self.query("thread", "functions", "--limit", 0, "--strategy", strategy)
        assert found["weightType"] == "bytes" and found["callTreeSummaryStrategy"] == strategy
        return [(function["name"], function["totalSamples"], function["selfSamples"]) for function in found["functions"]]

    def total(self, strategy, thread="t-0"):
        return sum(own for _, _, own in self.bytes_of_functions(strategy, thread))


@contextmanager
def loaded_profile(path, folder):
    """Loads a profile into a session of its own, and ends the session."""
    cli = ProfilerCli(folder)
    cli.load(path)
    try:
        yield cli
    finally:
        cli.run("stop", "--all")
