"""Source lines of call sites: shown for the programs that ran, and for no other file that a code
object names."""

import pytest

from conftest import gpumemtrace, run_program, python_of, environment
from page_file import PageFile

PROGRAM = """import sys

import torch

kept = []


def fit():
    kept.append(torch.empty(1 << 22, device="cuda"))


def fit_of(path):
    code = "\\n\\ndef fit(torch, kept):\\n    kept.append(torch.empty(1 << 21, device='cuda'))\\n"
    space = {}
    exec(compile(code, path, "exec"), space)
    space["fit"](torch, kept)


fit()
for path in sys.argv[1:]:
    fit_of(path)
"""


def test_only_code_of_the_run_is_shown(torch_version, tmp_path):
    work, home = tmp_path / "work", tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    work.mkdir()
    (work / "train.py").write_text(PROGRAM)
    key = home / ".ssh" / "id_ed25519"
    secret = "KEY_MATERIAL_1234"
    paths = [key, home / "settings.py", work / "settings.py", work / ".env.py"]
    for path in paths:
        path.write_text(f"{secret}\n" * 9)
    done = run_program([python_of(torch_version), work / "train.py", *paths], work, real_start=True, env=environment(work))
    assert done.returncode == 0, done.stderr
    text = gpumemtrace("replay", "--peak", work / "run.trace")
    assert 'kept.append(torch.empty(1 << 22, device="cuda"))' in text
    assert "settings.py:4 in fit" in text and secret not in text
    gpumemtrace("html", work / "run.trace", "-o", tmp_path / "page.html")
    page = PageFile(tmp_path / "page.html")
    assert "1 << 22" in str(page.data) and secret not in str(page.data)
