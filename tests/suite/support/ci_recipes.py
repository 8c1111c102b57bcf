"""Runs the jobs of docs/commands/ci.md as GitHub and GitLab would, on a machine without a GPU.

The shell steps run as they are in the page. `pip` installs for real, from a folder instead of an
index. Actions are replaced: each one that the page uses has a function here.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass, field

import yaml
from docs_pages import PAGES, blocks

PAGE = PAGES / "commands" / "ci.md"


def page_file(title):
    """The text of a file that the page shows."""
    return next("\n".join(block.lines) + "\n" for block in blocks(PAGE.read_text()) if block.title == title)


def page_steps():
    """The shell commands of the page's GitHub steps outside the workflow."""
    parsed = (yaml.safe_load("\n".join(block.lines)) for block in blocks(PAGE.read_text()) if block.language == "yaml" and not block.title)
    return [step["run"] for steps in parsed for step in steps]


@dataclass
class Job:
    """A finished job: whether it passed, its log, and what it kept by name."""

    passed: bool = True
    log: str = ""
    artifacts: dict = field(default_factory=dict)
    #: GitHub's summary page, or GitLab's test report.
    result: str = ""


class Machine:
    """A fresh machine for one job: an empty home, a checkout, and a stock PyTorch.

    The checkout has the wheel in its folder `ci`. `caches` has what earlier jobs cached, and is
    updated at the end.
    """

    def __init__(self, folder, stock, wheel, caches, checkout):
        self.home, self.workspace, self.caches = folder / "home", folder / "checkout", caches
        self.home.mkdir(parents=True)
        self.workspace.mkdir()
        self.checkout, self.wheel = checkout, wheel
        # The environment's own pip would install into the environment that it was copied from.
        programs = folder / "programs"
        programs.mkdir()
        (programs / "pip").write_text(f'#!/bin/sh\nexec {stock}/bin/python -m pip "$@"\n')
        (programs / "pip").chmod(0o755)
        self.variables = {"PATH": f"{programs}:{stock}/bin:/usr/bin:/bin", "HOME": str(self.home), "CI": "true", "LC_ALL": "C.UTF-8",
                          "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def check_out(self):
        for name, text in self.checkout.items():
            (self.workspace / name).write_text(text)
        (self.workspace / "ci").mkdir()
        shutil.copy(self.wheel, self.workspace / "ci")

    def shell(self, script, *options):
        """Runs a script in the checkout; returns its exit code, and its output on both streams."""
        done = subprocess.run(["/bin/bash", *options, "-c", script], cwd=self.workspace, env=self.variables, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        return done.returncode, done.stdout

    def path(self, text):
        return self.home / text[2:] if text.startswith("~/") else self.workspace / text

    def restore(self, paths):
        for text in paths:
            if text in self.caches:
                shutil.copytree(self.caches[text], self.path(text))

    def save(self, paths, folder):
        for number, text in enumerate(paths):
            if text not in self.caches and self.path(text).exists():
                self.caches[text] = shutil.copytree(self.path(text), folder / str(number))

    def collect(self, paths):
        return {text: self.path(text) for text in paths if self.path(text).is_file()}


def run_github(machine, folder):
    workflow = yaml.safe_load(page_file(".github/workflows/gpu-memory.yml"))
    # YAML 1.1 reads the key `on` as a truth value.
    assert workflow[True] == "pull_request"
    [steps] = [job["steps"] for job in workflow["jobs"].values()]
    summary = folder / "summary.md"
    machine.variables |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    job, cached = Job(), []
    for step in steps:
        assert step.get("if", "success()") in ("success()", "always()")
        if not job.passed and "if" not in step:
            continue
        if "run" in step:
            # GitHub replaces expressions before the shell runs; this does not.
            assert "${{" not in step["run"] and "shell" not in step
            code, printed = machine.shell(step["run"], "-e")
            job.passed, job.log = job.passed and code == 0, job.log + printed
            continue
        action, given = re.fullmatch(r"(.*)@v\d+", step["uses"])[1], step.get("with", {})
        if action == "actions/checkout":
            machine.check_out()
        elif action == "actions/setup-python":
            # A number would lose the 0 of 3.10.
            assert isinstance(given["python-version"], str)
        elif action == "actions/cache":
            expressions = re.findall(r"\$\{\{ hashFiles\('(.+?)'\) \}\}", given["key"])
            assert expressions and all((machine.workspace / name).is_file() for name in expressions)
            cached += given["path"].split()
            machine.restore(cached)
        elif action == "actions/upload-artifact":
            job.artifacts = machine.collect(given["path"].split())
        else:
            raise AssertionError(f"{step['uses']}: the test does not know this action")
    if job.passed:
        machine.save(cached, folder / "caches")
    job.result = summary.read_text() if summary.exists() else ""
    return job


def run_gitlab(machine, folder):
    [job_text] = yaml.safe_load(page_file(".gitlab-ci.yml")).values()
    machine.check_out()
    predefined = {"CI_PROJECT_DIR": str(machine.workspace), "GITLAB_CI": "true"}
    machine.variables |= predefined
    for name, value in job_text["variables"].items():
        machine.variables[name] = re.sub(r"\$(\w+)", lambda used: predefined[used[1]], value)
    cache = job_text["cache"]
    assert all((machine.workspace / name).is_file() for name in cache["key"]["files"])
    machine.restore(cache["paths"])
    code, printed = machine.shell("\n".join(job_text["script"]), "-eo", "pipefail")
    kept = job_text["artifacts"]
    job = Job(code == 0, printed)
    if kept["when"] == "always" or job.passed:
        job.artifacts = machine.collect(kept["paths"])
        reports = machine.collect([kept["reports"]["junit"]])
        job.result = "".join(path.read_text() for path in reports.values())
    if job.passed:
        machine.save(cache["paths"], folder / "caches")
    return job


SERVICES = {"github": run_github, "gitlab": run_gitlab}
