"""Compares `gpumemtrace whatif` with what PyTorch really does under the predicted settings.

A program is recorded once with default settings, and its trace gives the predictions. Then it runs
with each setting, and `torch.cuda.memory_stats()` at its end must equal the prediction.
"""

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
BUILD = Path(os.environ.get("GPUMEMTRACE_BUILD", TARGET / "release"))
WORKLOADS, ACCURACY = REPOSITORY / "tests" / "workloads", REPOSITORY / "scripts" / "accuracy"
#: Statistics that a row must predict, by key of the row.
PREDICTED = {
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "end_reserved_bytes": "reserved_bytes.all.current",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
    "segments_made": "num_device_alloc",
}
#: Settings by preference, with the first minor version of PyTorch 2 that has them. The last but two
#: limit PyTorch to half of a card of 4 GiB, and collect garbage from 5% of that on.
SETTINGS = [
    (1, "expandable_segments:True"),
    (10, "max_split_size_mb:20"),
    (1, "max_split_size_mb:21"),
    (1, "roundup_power2_divisions:4"),
    (10, "garbage_collection_threshold:0.05,per_process_memory_fraction:0.5"),
    (6, "max_split_size_mb:64,max_non_split_rounding_mb:32,roundup_power2_divisions:8"),
    (1, "expandable_segments:True,roundup_power2_divisions:8"),
    (1, "max_split_size_mb:128"),
]


class RunFailed(Exception):
    """A program or the command failed; the text says how."""


@dataclass(frozen=True)
class ComparedProgram:
    """A program that makes the same requests in every run."""

    name: str
    path: Path
    arguments: tuple = ()
    #: Memory of the simulated card.
    card: str = "4G"
    #: First minor version of PyTorch 2 that can run it.
    since: int = 1
    #: Settings beside the usual ones.
    settings: tuple = ()


@dataclass
class ComparedRow:
    """A prediction, and where the real run differs: (predicted, real) by key of the row."""

    setting: str
    status: str
    reason: str
    different: dict = field(default_factory=dict)


def minor_of(version):
    return int(version.split(".")[1])


def settings_of(version, more=()):
    """Returns five settings that a version has, and those of `more` that it can run."""
    minor = minor_of(version)
    usual = [text for since, text in SETTINGS if since <= minor]
    if minor >= 10:
        usual.remove("max_split_size_mb:21")
    # Before 2.5, expandable segments with a limit of splits end at an assertion of PyTorch.
    return usual[:5] + [text for text in more if minor >= 5]


def on_real_gpu(setting, program, card_bytes):
    """Returns the setting with a limit that leaves the program as much as its simulated card."""
    parts = dict(part.split(":", 1) for part in setting.split(",") if part)
    share = float(parts.pop("per_process_memory_fraction", 1))
    parts["per_process_memory_fraction"] = f"{share * int(program.card[:-1]) * 2**30 / card_bytes:.9f}"
    return ",".join(f"{key}:{value}" for key, value in parts.items())


def run_program(program, version, python, folder, setting="", trace=None, card=None):
    """Runs a program to its end, recorded if `trace` is given; returns `memory_stats()`."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("GPUMEMTRACE_", "SIMGPU_", "PYTORCH_", "LD_"))}
    env |= {"SIMGPU_MEM": str(card or program.card), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ACCURACY / "probe")}
    if setting:
        env["PYTORCH_ALLOC_CONF" if minor_of(version) >= 10 else "PYTORCH_CUDA_ALLOC_CONF"] = setting
    stats = folder / "stats.json"
    stats.unlink(missing_ok=True)
    record = [BUILD / "gpumemtrace", "run", "-o", trace, "--"] if trace else []
    command = [*record, python, WORKLOADS / "whatif" / "final_stats.py", stats, program.path, *program.arguments]
    done = subprocess.run([str(word) for word in command], cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    if done.returncode or not stats.exists():
        raise RunFailed(f"{program.name} with {setting or 'defaults'}: exit {done.returncode}: {done.stderr[-1500:]}")
    return json.loads(stats.read_text())


def answer_of(trace, settings, *arguments):
    """Returns the JSON of `gpumemtrace whatif`."""
    command = [BUILD / "gpumemtrace", "whatif", trace, "--json", "--no-progress", *[f"--alloc-conf={setting}" for setting in settings], *arguments]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RunFailed(f"whatif: exit {done.returncode}: {done.stderr[-1500:]}")
    return json.loads(done.stdout)


def assert_model_reproduces(trace, device=0, ran_out=False):
    """Replays a run by the model with the run's own settings.

    A run is "exact" only if the model reserves what PyTorch did after each request, to the byte. A
    run that got too little memory is compared too, but never exact: the program may have reacted.
    """
    base = answer_of(trace, ["max_split_size_mb:4096"], "--gpu", str(device))["base"]
    if ran_out:
        assert base["status"] == "indicative" and "out-of-memory" in base["reason"] and "the model reserves" not in base["reason"], base
    else:
        assert (base["status"], base["reason"]) == ("exact", None), base


def compare_row(row, stats):
    """Compares a row of the answer with the statistics of the real run."""
    # PyTorch 2.1 does not count calls of the driver; it counts segments, but no expandable ones.
    real = {key: stats.get(name) for key, name in PREDICTED.items()}
    if not stats.get("num_device_alloc") and "expandable" not in row["setting"]:
        real["segments_made"] = stats.get("segment.all.allocated")
    different = {key: (row[key], value) for key, value in real.items() if value is not None and row[key] != value}
    return ComparedRow(row["setting"], row["status"], row["reason"], different)


def compare(program, version, python, folder, settings=None, card_bytes=None):
    """Records a program, predicts, and runs it with each setting, by default those of the version.

    With the memory of a real card, all runs are limited to the program's part of it. Returns the
    row of the recorded run itself and those of the settings.
    """
    trace, settings, recorded_setting = folder / "run.trace", settings or settings_of(version, program.settings), ""
    if card_bytes:
        recorded_setting, *settings = [on_real_gpu(setting, program, card_bytes) for setting in ("", *settings)]
    recorded = run_program(program, version, python, folder, recorded_setting, trace, card_bytes)
    answer = answer_of(trace, settings)
    rows = {row["setting"]: row for row in answer["rows"]}
    base = compare_row(answer["base"], recorded)
    compared = [compare_row(rows[setting], run_program(program, version, python, folder, setting, card=card_bytes)) for setting in settings if setting in rows]
    trace.unlink()
    return base, compared


def accuracy(name, steps, **more):
    return ComparedProgram(name.split("/")[1], ACCURACY / "programs" / f"{name}.py", ("--steps", str(steps)), **more)


def scenario(name):
    return ComparedProgram(name, WORKLOADS / "training" / "allocator_scenarios.py", (name, "native", "--one-thread"))


def leaklab(name):
    return ComparedProgram(f"leaklab-{name}", REPOSITORY / "scripts" / "leaklab" / "train.py", (name, "--steps", "8", "--batch", "32"), card="8G")


def pattern(name, **more):
    return ComparedProgram(name, WORKLOADS / "whatif" / "patterns.py", (name,), **more)


#: The programs, those of `--quick` first.
PROGRAMS = [
    pattern("loading_weights", card="80G"),
    scenario("resnet18"),
    scenario("streams"),
    pattern("nearly_full", card="1G"),
    accuracy("serving/kv_cache_lru", 60),
    pattern("growing_sizes"),
    pattern("fenced_cycles", card="16G", settings=("expandable_segments:True,max_split_size_mb:128",)),
    pattern("full_card", card="1G"),
    pattern("halved_batches", card="1G"),
    pattern("growing_caches"),
    pattern("varying_batches"),
    pattern("phases"),
    pattern("two_streams"),
    pattern("kept_results"),
    scenario("resnet18-amp"),
    scenario("transformer"),
    scenario("transformer-amp"),
    scenario("graphs"),
    leaklab("baseline"),
    leaklab("retained_validation"),
    leaklab("detached_fragments"),
    accuracy("training/checkpointed_blocks", 10),
    accuracy("training/amp_scaler", 10),
    accuracy("training/lbfgs_history", 10),
    accuracy("training/sharpness_aware", 10),
    accuracy("data/side_stream_prefetch", 20),
    accuracy("data/length_buckets", 20),
    accuracy("language/sequence_length_curriculum", 20),
    accuracy("language/beam_search", 20),
    accuracy("generative/diffusion_training", 12),
    accuracy("generative/progressive_growing", 16),
    accuracy("serving/paged_attention", 40),
    accuracy("serving/prefix_cache_bounded", 60),
    accuracy("serving/speculative_decoding", 30),
    accuracy("vision/progressive_resizing", 16),
    accuracy("vision/tiled_inference", 20),
    accuracy("runtime/cache_emptied", 15),
    accuracy("runtime/graphs_by_bucket", 20),
    accuracy("runtime/graphs_by_shape", 12),
    accuracy("runtime/pools_kept", 12, since=8),
    accuracy("runtime/pipeline_over_streams", 10),
    accuracy("timing/validation_until_full", 20),
    accuracy("rl/ppo_rollouts", 12),
    accuracy("science/unrolled_optimization", 12),
]
QUICK = PROGRAMS[:5]
