"""Memory budgets for tests under real PyTorch; PyTorch's counters are the oracle."""

import re
import xml.etree.ElementTree
from pathlib import Path

import pytest

from conftest import VENVS, WORKLOADS, environment, run_program
from installed_package import installed, link_pytest, wheel  # noqa: F401 (fixtures)


@pytest.fixture(scope="session")
def packages(installed, tmp_path_factory):  # noqa: F811
    """What PyTorch's environments lack: this pytest, and the package from its wheel."""
    folder = link_pytest(tmp_path_factory.mktemp("pytest"))
    there = installed[max(installed)]
    return there.command, f"{next(there.folder.glob('lib/python3.*/site-packages'))}:{folder}"


def outcomes(folder):
    """Returns by test: passed, failure, skipped or error, with message and properties."""
    found = {}
    for case in xml.etree.ElementTree.parse(folder / "junit.xml").iter("testcase"):
        verdict = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        properties = {item.get("name"): int(item.get("value")) for item in case.iter("property")}
        text = "" if verdict is None else (verdict.get("message") or "") + (verdict.text or "")
        found[case.get("name")] = ("passed" if verdict is None else verdict.tag, text, properties)
    return found


def run(version, packages, folder, *arguments, traced=True, **extra):
    command, path = packages
    env = environment(folder, traced=False, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE=1, **extra)
    python = [Path(VENVS[version]) / "bin" / "python", "-m", "pytest", WORKLOADS / "package/memory_budgets.py", "-p", "no:cacheprovider",
              "--rootdir", folder, "--strict-markers", "-o", "junit_family=xunit1", f"--junitxml={folder / 'junit.xml'}", *arguments]
    done = run_program([*([command, "run", "--"] if traced else []), *python], folder, env=env)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    return outcomes(folder)


def test_verdicts_have_pytorch_numbers(torch_version, packages, tmp_path):
    found = run(torch_version, packages, tmp_path)
    assert len(found) == 15
    for name, (verdict, text, properties) in found.items():
        expected = "error" if "error" in name else "failure" if "fails" in name else "passed"
        assert verdict == expected, (name, text)
        # To the byte, also within budget. Tests that failed by themselves are not measured.
        if "gpu0_peak_live_bytes" in properties:
            # PyTorch's counters start before the repetition that does not count.
            left = 0 if "once" in name else properties["torch_left"]
            ours = properties["gpu0_peak_live_bytes"], properties["gpu0_net_bytes"]
            assert ours == (properties["torch_peak"], left), name
    judged = {name for name, (_, _, properties) in found.items() if "gpu0_peak_live_bytes" in properties}
    errors = {name: text for name, (_, text, _) in found.items() if "has_an_error" in name}
    assert set(found) - judged == {"test_by_itself_fails", "test_without_a_mark_passes", *errors}
    over = found["test_over_by_a_block_fails"][1]
    assert "8,389,120 bytes" in over and "on GPU 0, above its budget of 8.00 MiB (8,388,608 bytes)" in over
    retained = found["test_that_keeps_fails"][1]
    assert "the test retained 4.00 MiB (4,194,304 bytes) on GPU 0, above the allowed 0 B" in retained
    # The lines that hold it; at the peak, what earlier tests hold is there too.
    call = re.escape(str(WORKLOADS / "package/memory_budgets.py")) + r":20 in use\(\)"
    assert re.search(rf"\n {{6}}4\.00 MiB  {call}$", retained), retained
    assert re.search(rf"\n {{6}}8\.00 MiB  {call}$", over), over
    assert "its own failure" in found["test_by_itself_fails"][1]
    assert "'1 parsec' is not a size" in errors["test_of_no_size_has_an_error"]
    argument = "gpu_memory_budget: missing a required argument: 'peak'; its arguments are peak, device"
    assert argument in errors["test_of_wrong_argument_has_an_error"]
    assert "gpu_no_leaks: warmup='two' is not a number; give 0, 1, 2, ..." in errors["test_of_wrong_warmup_has_an_error"]


def test_unrecorded_test_does_not_pass(packages, tmp_path):
    version = next(iter(VENVS))
    for options, expected in ([], "skipped"), (["--gpumemtrace-required"], "error"):
        for name, (verdict, text, _) in run(version, packages, tmp_path, *options, traced=False).items():
            if "without_a_mark" in name:
                assert verdict == "passed"
            elif "has_an_error" in name:
                assert verdict == "error"
            else:
                assert verdict == expected and "run pytest as `gpumemtrace run -- python -m pytest`" in text, (name, text)


def test_unwritable_trace_fails_the_budget(packages, tmp_path):
    found = run(next(iter(VENVS)), packages, tmp_path, "-k", "first_of_all or gives_back", GPUMEMTRACE_OUTPUT="/nowhere/run.trace")
    assert len(found) == 2
    for name, (verdict, text, _) in found.items():
        assert verdict == "failure" and "there is no recording" in text, (name, text)


def test_budget_covers_test_that_starts_recording(packages, tmp_path):
    # This test imports PyTorch, so no recording runs when it begins.
    (tmp_path / "test_late.py").write_text(
        "import pytest\n"
        "@pytest.mark.gpu_memory_budget(peak='1 GiB')\n"
        "@pytest.mark.gpu_no_leaks\n"
        "def test_late(record_property):\n"
        "    import torch\n"
        "    torch.ones(1000, device='cuda')\n"
        "    record_property('torch_peak', torch.cuda.max_memory_allocated())\n"
        "@pytest.mark.gpu_memory_budget(peak='1 KiB')\n"
        "def test_later():\n"
        "    pass\n"
    )
    command, path = packages
    python = Path(VENVS[next(iter(VENVS))]) / "bin" / "python"
    env = environment(tmp_path, traced=False, PYTHONPATH=path)
    done = run_program([command, "run", "--", python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={tmp_path / 'junit.xml'}",
                        "test_late.py"], tmp_path, env=env)
    found = outcomes(tmp_path)
    verdict, text, properties = found["test_late"]
    assert verdict == "passed", text + done.stdout
    assert properties == {"torch_peak": 4096, "gpu0_peak_live_bytes": 4096, "gpu0_net_bytes": 0}
    assert found["test_later"][0] == "passed"
    # A test over its budget in the very first GPU call fails.
    late = tmp_path / "test_late.py"
    late.write_text(late.read_text().replace("1 GiB", "4095 B"))
    run_program([command, "run", "--", python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={tmp_path / 'junit.xml'}",
                 "test_late.py"], tmp_path, env=env)
    verdict, text, _ = outcomes(tmp_path)["test_late"]
    assert verdict == "failure" and "4.00 KiB (4,096 bytes)" in text, text
