"""Tests with memory budgets, for test_pytest_plugin.py; their names say which pass."""

import pytest
import torch

MIB = 1 << 20
held = []


@pytest.fixture
def measured(record_property):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    yield
    record_property("torch_peak", torch.cuda.max_memory_allocated())
    record_property("torch_left", torch.cuda.memory_allocated() - before)


def use(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


@pytest.mark.gpu_memory_budget(peak="8 MiB")
def test_first_of_all_passes(measured):
    use(8 * MIB)


@pytest.mark.gpu_memory_budget(peak="8 MiB")
def test_over_by_a_block_fails(measured):
    use(8 * MIB + 1)


@pytest.mark.gpu_memory_budget(peak="8 MB")
def test_over_in_decimal_units_fails(measured):
    use(8_000_001)


@pytest.mark.gpu_memory_budget(3 * MIB)
@pytest.mark.parametrize("size, verdict", [(3, "passes"), (4, "fails")])
def test_sizes(measured, size, verdict):
    use(size * MIB)


@pytest.mark.gpu_memory_budget(peak="1B", device=1)
def test_of_another_device_passes(measured):
    use(16 * MIB)


@pytest.mark.gpu_no_leaks
def test_that_gives_back_passes(measured):
    use(4 * MIB)
    # A cycle is freed by the garbage collector only.
    cycle = [use(MIB)]
    cycle.append(cycle)


@pytest.mark.gpu_no_leaks
def test_that_keeps_fails(measured):
    held.append(use(4 * MIB))


@pytest.mark.gpu_no_leaks(allowed="4 MiB")
@pytest.mark.gpu_memory_budget(peak="1 GiB")
def test_that_may_keep_passes(measured):
    held.append(use(4 * MIB))


@pytest.mark.gpu_no_leaks(warmup=1)
def test_that_keeps_once_passes(measured):
    cache = test_that_keeps_once_passes.__dict__
    if "cache" not in cache:
        cache["cache"] = use(2 * MIB)


@pytest.mark.gpu_memory_budget(peak="1 GiB")
def test_by_itself_fails(measured):
    raise AssertionError("its own failure")


@pytest.mark.gpu_memory_budget(peak="1 parsec")
def test_of_no_size_has_an_error():
    pass


@pytest.mark.gpu_memory_budget(pek="1 GiB")
def test_of_wrong_argument_has_an_error():
    pass


@pytest.mark.gpu_no_leaks(warmup="two")
def test_of_wrong_warmup_has_an_error():
    pass


def test_without_a_mark_passes():
    use(32 * MIB)
