"""`gpumemtrace whatif`, compared with what PyTorch really does under the predicted settings.

A program runs once with default settings; its trace gives the predictions. Then it runs with each
setting, and `torch.cuda.memory_stats()` of that run must equal the prediction.
"""

import json

import pytest

from conftest import gpumemtrace

SETTINGS = ["", "expandable_segments:True", "max_split_size_mb:21", "roundup_power2_divisions:4"]
#: Statistics that every exact row must predict, by key of the row.
PREDICTED = {
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "end_reserved_bytes": "reserved_bytes.all.current",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
}
#: The reason of a row that needs more memory than the recorded run, if nothing shows what is free.
UNKNOWN_CARD = "it is unknown how much of the card other users than PyTorch take"


@pytest.fixture
def scenario(run_python, torch_version):
    """Runs a scenario under PyTorch's own allocator; returns memory_stats() and the trace."""

    def run(name, setting="", traced=True, **env):
        env["PYTORCH_CUDA_ALLOC_CONF"] = setting
        done = run_python(torch_version, "training/allocator_scenarios.py", name, "native", "--one-thread", traced=traced,
                          name=f"{name}-{setting or 'default'}".replace(":", "-"), **env)
        return json.loads(done.process.stdout.splitlines()[-1])["stats"][0], done.trace if traced else None

    return run


def answer_of(trace, *arguments, code=0):
    return json.loads(gpumemtrace("whatif", trace, *arguments, "--json", code=code))


def numbers_of(row):
    return {key: row[key] for key in PREDICTED}


def real_numbers(stats):
    return {key: stats.get(name, 0) for key, name in PREDICTED.items()}


@pytest.mark.parametrize("name", ["resnet18", "streams"])
def test_predictions_equal_real_runs(scenario, name):
    recorded, trace = scenario(name)
    answer = answer_of(trace, *[f"--set={setting}" for setting in SETTINGS[1:]])
    assert (answer["schema"], answer["version"]) == ("gpumemtrace.whatif", 1)
    rows = {row["setting"]: row for row in answer["rows"]} | {"": answer["base"]}
    assert set(rows) == set(SETTINGS)
    for setting, row in rows.items():
        real = real_numbers(scenario(name, setting, traced=False)[0])
        assert numbers_of(row) == real, setting
        # A short run shows no free memory of the card, so more than the recorded peak may not fit.
        is_known = row["peak_reserved_bytes"] <= answer["base"]["peak_reserved_bytes"] or row["reason"] is None
        assert row["status"] == ("exact" if is_known else "indicative"), row
        assert is_known or row["reason"] == UNKNOWN_CARD
    assert numbers_of(answer["base"]) == real_numbers(recorded)
