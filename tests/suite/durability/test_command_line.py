"""Secrets in the command line reach neither the trace nor any report; the rest of it does.

recorder/src/metadata/secrets/tests.rs has the table of what is masked.
"""

import shutil
import subprocess

import pytest

from conftest import COMMAND, DRIVER, LIBRARY, WORKLOADS, environment, gpumemtrace
from durability_case import Case, skip_or_fail

SECRET = "Zq7XkW9pLmN3vB5cR8tY"
ARGUMENTS = {
    "--password": "--password", SECRET: "***",
    f"--api-key={SECRET}": "--api-key=***",
    "--tokenizer": "--tokenizer", "bert": "bert",
    f"DB_PASSWORD={SECRET}": "DB_PASSWORD=***",
    f"https://me:{SECRET}@host/data": "https://me:***@host/data",
    f"hf_{SECRET}": "hf_***",
    "--max-tokens": "--max-tokens", "512": "512",
}


@pytest.fixture
def case(tmp_path):
    shutil.copy(DRIVER, tmp_path / "libcuda.so.1")
    compiler = shutil.which("cc") or skip_or_fail("there is no C compiler")
    subprocess.run([compiler, "-O1", "-o", tmp_path / "process_ends", WORKLOADS / "driver" / "process_ends.c", f"-L{tmp_path}",
                    f"-Wl,-rpath,{tmp_path}", "-l:libcuda.so.1", "-lpthread", "-ldl"], check=True)
    return Case(tmp_path / "run", tmp_path)


def everything(case):
    """Returns all that is in the files of a run, as bytes and as the command prints it."""
    raw = b"".join(path.read_bytes() for path in case.folder.glob("run*"))
    texts = [gpumemtrace("info", "-v", case.trace), gpumemtrace("dump", case.trace), gpumemtrace("replay", "-v", case.trace)]
    return raw.decode("latin-1") + "".join(texts)


@pytest.mark.parametrize("is_killed", [False, True], ids=["exits", "killed"])
def test_secrets_are_masked(case, is_killed):
    program = case.bin / "process_ends"
    with case.start(program, "forever", *ARGUMENTS) as process:
        assert process.stdout.readline() == "begun\n"
        process.kill() if is_killed else process.communicate("\n")
    assert case.facts()["command"] == [str(program), "forever", *ARGUMENTS.values()]
    text = everything(case)
    assert "***" in text and SECRET not in text


def test_command_line_is_not_recorded_on_request(case):
    arguments = [case.bin / "process_ends", "works", "200", "harmless-argument"]
    by_variable = case.run(*arguments, GPUMEMTRACE_COMMAND_LINE="off")
    assert (by_variable.code, by_variable.printed) == (0, "")
    for _ in range(2):
        assert case.facts()["command"] is None
        assert "command line: not recorded" in gpumemtrace("info", case.trace)
        assert "harmless-argument" not in everything(case)
        case.trace.unlink()
        env = environment(case.folder, traced=False, LD_LIBRARY_PATH=case.bin, GPUMEMTRACE_LIB=LIBRARY)
        subprocess.run([COMMAND, "run", "--no-command-line", "--", *arguments], cwd=case.folder, env=env, check=True, capture_output=True)
    assert case.run(*arguments).facts()["command"] == list(map(str, arguments))
