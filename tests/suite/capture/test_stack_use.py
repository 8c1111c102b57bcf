"""Hooks run on whatever stack the program calls the driver from."""

import pytest

from route_programs import place  # noqa: F401 (fixture)

KINDS = ["thread", "coroutine", "handler"]
#: Bytes of stack that a hook and the functions that it calls may use, also in the first call of the
#: process. The smallest alternate stack that programs have, SIGSTKSZ, is 8 KiB, and the kernel's
#: signal frame takes up to half of it.
LIMIT_BYTES = 4096


@pytest.fixture
def program(place):  # noqa: F811
    # Without lazy binding, which takes stack of its own.
    return place.program("stack_use", "-l:libcuda.so.1", "-lpthread", "-Wl,-z,now")


@pytest.mark.parametrize("stacks", ["none", "python", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_stack_use_of_hooks_is_bounded(place, program, kind, stacks):  # noqa: F811
    used = []
    for traced in (False, True):
        done = place.run(program, kind, "measure", traced=traced, GPUMEMTRACE_STACKS=stacks)
        assert (done.returncode, done.stderr) == (0, "")
        name, count = done.stdout.split()
        assert name == kind
        used.append(int(count))
    assert used[1] - used[0] < LIMIT_BYTES, f"{used[1]} bytes, untraced {used[0]}"


@pytest.mark.parametrize("kind", KINDS)
def test_small_stacks_suffice(place, program, kind):  # noqa: F811
    assert place.run(program, kind, traced=False).returncode == 0, "the program works untraced"
    (place.folder / "driver.log").unlink()
    done = place.run(program, kind)
    assert (done.returncode, done.stderr) == (0, "")
    # Three pairs of calls, each seen by the simulated driver.
    assert len([event for event in place.events() if event["kind"] == "device_alloc"]) == 3
