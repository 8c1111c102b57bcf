"""`gpumemtrace fit`, compared with real runs on simulated cards of the predicted size."""

import dataclasses
import json
from pathlib import Path

import pytest

from conftest import VENVS, gpumemtrace
from whatif_runs import PROGRAMS, compare_row, run_program

BY_NAME = {program.name: program for program in PROGRAMS}
STEP_BYTES = 2 << 20


#: Why the predictions of a program with streams are not certain on a real GPU. On the simulated
#: one, work ends at once in every run.
IN_USE = "another stream used"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["growing_sizes", "two_streams", "streams"])
def test_program_runs_on_the_smallest_card_and_on_no_smaller_one(name, torch_version, tmp_path):
    program, python = BY_NAME[name], Path(VENVS[torch_version]) / "bin" / "python"
    trace = tmp_path / "run.trace"
    run_program(program, torch_version, python, tmp_path, trace=trace)
    rows = json.loads(gpumemtrace("fit", trace, "--json"))["rows"]
    assert [row["setting"] for row in rows] == ["", "", "expandable_segments:True", "expandable_segments:True"]
    for smallest, too_small in (rows[:2], rows[2:]):
        setting = smallest["setting"]
        assert (smallest["ooms"], too_small["ooms"]) == (0, 1)
        reasons = (smallest["reason"] or "").split("; ")
        assert reasons == [""] if "streams" not in name else any(reason.startswith(IN_USE) for reason in reasons), reasons
        assert smallest["card_bytes"] - too_small["card_bytes"] == STEP_BYTES
        for row in (smallest, too_small):
            card = dataclasses.replace(program, card=f"{row['card_bytes'] >> 20}M")
            real = run_program(card, torch_version, python, tmp_path, setting)
            assert compare_row(row, real).different == {}, row


def test_text_names_the_card_and_what_fails_on_a_smaller_one(torch_version, tmp_path):
    program, python = BY_NAME["growing_sizes"], Path(VENVS[torch_version]) / "bin" / "python"
    run_program(program, torch_version, python, tmp_path, trace=tmp_path / "run.trace")
    text = gpumemtrace("fit", tmp_path / "run.trace", "--alloc-conf", "max_split_size_mb:64")
    assert "smallest card" in text and "recorded: PyTorch's defaults" in text and "max_split_size_mb:64" in text
    assert "with 2.00 MiB less, out of memory in step" in text and "patterns.py:" in text
    assert "Smallest known card that holds the run: T400 (4 GB)" in text
