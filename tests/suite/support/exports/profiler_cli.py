"""Mozilla's profiler-cli, which loads profiles with the code of the Firefox Profiler."""

import json
import os
import subprocess
import time
from contextlib import contextmanager

from readers import node_package


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
        """Loads a profile. On a busy machine its daemon needs longer than the half second that the
        command waits."""
        command = lambda *words: subprocess.run([*self.program, *words], capture_output=True, text=True, timeout=120, env=self.env)
        done = command("load", path)
        assert done.returncode == 0 or "did not become ready" in done.stderr, done.stdout + done.stderr
        deadline = time.monotonic() + 120
        while command("status").returncode != 0:
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.2)

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
