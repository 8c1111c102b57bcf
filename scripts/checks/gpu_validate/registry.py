"""The list of checks. A check is a generator of rows, or raises Different or Impossible."""

from collections import namedtuple

Check = namedtuple("Check", "name variant function options blind")
CHECKS = []


def check(name, variant=None, blind=None, **options):
    """Registers a check. `blind`: why a run on the simulated GPU proves nothing."""

    def register(function):
        CHECKS.append(Check(name, variant, function, options, blind))
        return function

    return register


SIMULATED_DRIVER = "the result is a property of the simulated driver"
