"""What a program really keeps, by PyTorch's own counters, and whether its header is true."""

from dataclasses import dataclass

# The share of a run that rates leave out: parameters and optimizer state come there.
WARM_UP = 0.1
# A header's rate may differ from the measured one by this share: batches of random size also count.
RATE_TOLERANCE = 0.1


@dataclass
class Truth:
    """Series at the ends of steps, and what follows from them."""

    values: list
    blocks: list
    peak: int
    full_at: int | None
    # Bytes per step: the header's, else the measured one from `begins` on. None without a leak.
    rate: float | None
    problems: list


def truth_of(program, series, steps, done=None, requested=False):
    """Returns the truth of a run that ends after `done` steps; a whole run must match its header.

    With `requested`, sizes are those that the program asked for, before rounding.
    """
    name = "reserved" if program.measure == "reserved" else "requested" if requested else "bytes"
    values = series[name][:done]
    begins = int(steps * (program.begins or WARM_UP))
    rate = rate_of(values, begins, program.every) if program.kind == "leak" else None
    truth = Truth(values, series["blocks"][:done], series["peak"], series["full_at"], rate, [])
    if done is not None:
        truth.rate = truth.rate if requested else program.rate or truth.rate
    elif len(values) != steps and program.memory is None:
        truth.problems.append(f"{len(values)} step ends instead of {steps}")
    elif program.check and len(values) >= 8:
        truth.problems += problems_of(program, truth, requested)
    return truth


def rate_of(values, begins, every):
    """Returns bytes per step over the last whole periods that began after `begins`, or None."""
    span = len(values) - 1 - begins
    if span <= 0:
        return None
    whole = int(int(span / every) * every) or span
    return (values[-1] - values[-1 - whole]) / whole


def problems_of(program, truth, requested):
    if program.kind == "healthy":
        return ["live bytes still grow in the last quarter"] if still_grows(truth.values) else []
    if program.kind == "growing" and still_grows(truth.blocks, 0.25):
        return ["the number of live blocks grows"]
    if program.kind in ("growing", "filling"):
        return [] if truth.values[-1] > truth.values[len(truth.values) // 2] else ["nothing grows in the second half"]
    if not truth.rate or truth.rate <= 0:
        return ["nothing grows"]
    measured = truth.rate
    if program.rate and not requested:
        truth.rate = program.rate
    if abs(measured - truth.rate) > RATE_TOLERANCE * truth.rate:
        return [f"{measured:,.0f} B per step were measured, the header says {truth.rate:,.0f} B"]
    return []


def still_grows(values, tolerance=0.0):
    """Whether all values of the last quarter are above all of the three quarters before."""
    cut = len(values) * 3 // 4
    # Skips the first quarter, when parameters and optimizer state come.
    before = max(values[len(values) // 4:cut])
    return min(values[cut:]) > before * (1 + tolerance)
