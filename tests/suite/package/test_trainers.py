"""The callbacks for PyTorch Lightning and Hugging Face's Trainer, in real trainings.

Oracles: the trainers' own counts, and PyTorch's memory in a callback that runs after ours.
"""

import pytest

from installed_package import installed, packaged, trainers_of, wheel  # noqa: F401 (fixtures)

SILENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def phases_of(report):
    """Returns by phase name: count, peak of allocated bytes, and bytes left at its end."""
    return {
        phase["name"]: {"count": phase["count"], **{key: value for key, value in phase["devices"][0].items() if key != "device"}}
        for phase in report["phases"]
    }


@pytest.mark.long
@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_phases_match_pytorch(torch_version, packaged, name):
    run = packaged(torch_version, "package/lightning_training.py", name, more=[trainers_of(torch_version)], **SILENT)
    printed = run.printed
    report, seen = printed["report"], printed["seen"]
    # Two epochs of six batches, and a training that fails in its third batch.
    assert printed["global_steps"] == [12, 2] and seen["failed"]
    assert (report["steps"]["source"], report["steps"]["count"]) == ("marks", 15) == ("marks", seen["batches"])
    phases = phases_of(report)
    assert phases.pop("after")["count"] == 1, "the failed training left no phase open"
    assert phases == seen["phases"]
    assert {name: phase["count"] for name, phase in phases.items()} == {
        "sanity check": 1, "train": 4, "validation": 3, "test": 1, "predict": 1}


@pytest.mark.long
def test_huggingface_phases_match_pytorch(torch_version, packaged):
    run = packaged(torch_version, "package/huggingface_training.py", more=[trainers_of(torch_version)], **SILENT)
    printed = run.printed
    report, seen = printed["report"], printed["seen"]
    assert printed["global_step"] == 6, "steps of two batches each"
    assert (report["steps"]["source"], report["steps"]["count"]) == ("marks", printed["global_step"])
    phases = phases_of(report)
    assert {name: phase["count"] for name, phase in phases.items()} == {
        "train": 4, "evaluate": 3, "prediction": seen["evaluations"] - 3 + seen["predictions"]}
    assert phases["evaluate"]["peak_live_bytes"] == max(seen["peaks"][:3])


def test_missing_trainer_raises_clear_error(torch_version, packaged, tmp_path):
    code = tmp_path / "asks.py"
    code.write_text(
        "import json\n"
        "import gpumemtrace, gpumemtrace.huggingface, gpumemtrace.lightning\n"
        "printed = []\n"
        "for module in gpumemtrace.huggingface, gpumemtrace.lightning:\n"
        "    try:\n"
        "        module.MemoryTrace\n"
        "    except ImportError as error:\n"
        "        printed.append(str(error))\n"
        "    assert not hasattr(module, 'something')\n"
        "print(json.dumps(printed))\n"
    )
    assert packaged(torch_version, code, by_run=False).printed == [
        "gpumemtrace.huggingface needs the package `transformers`",
        "gpumemtrace.lightning needs PyTorch Lightning: the package `lightning` or `pytorch_lightning`",
    ]
