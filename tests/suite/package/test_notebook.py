"""The cell magic in an IPython shell and in a kernel; the cells' own allocations are the oracle."""

import re

import pytest

from installed_package import installed, packaged, trainers_of, wheel  # noqa: F401 (fixtures)

pytestmark = pytest.mark.long

KEEPS = "4.00 MiB  {} cell, line 1: kept.append(torch.ones(1 << 20, device='cuda'))"
MAKES = "4.00 MiB  another cell, line 2: return torch.ones(1 << 18, device='cuda')"
KEPT_NAME = "gpumemtrace: already recording; the trace keeps its name\n"


def blocks(text):
    """Parses the text printed after a cell: its first line, and the rows of each list."""
    lines = [line.strip() for line in text.rstrip().splitlines()]
    begin = next(index for index, line in enumerate(lines) if line.startswith("GPU 0, this cell"))
    rows = {}
    for line in lines[begin + 1:]:
        if line.endswith(":") and "MiB" not in line:
            title = rows.setdefault(line[:-1], [])
        else:
            title.append(line)
    return lines[begin], rows


@pytest.mark.parametrize("where", ["shell", "kernel"])
@pytest.mark.parametrize("by_run", [True, False])
def test_each_cell_reports_peak_and_retained_bytes(torch_version, packaged, where, by_run):
    run = packaged(torch_version, "package/notebook.py", where, by_run=by_run, more=[trainers_of(torch_version)],
                   IPYTHONDIR="ipython", JUPYTER_RUNTIME_DIR="runtime")
    (load, plain, nothing, first, define, failing, other, clearing, asked, unparsed), succeeded = zip(*run.printed)
    assert succeeded == (True,) * 5 + (False,) + (True,) * 3 + (False,), "a cell fails as it does without the magic"
    assert (load, plain, define) == ("", "", "")
    assert nothing == KEPT_NAME * by_run + "gpumemtrace: no GPU call so far\n"
    assert run.trace.name == ("run.trace" if by_run else "named.trace")

    assert first.startswith(KEPT_NAME)
    assert blocks(first) == (
        "GPU 0, this cell: peak allocated 16.00 MiB; at start 0 B, at end 4.00 MiB (+4.00 MiB)",
        {"allocated at the peak": ["12.00 MiB  this cell, line 2: y = torch.ones(3 << 20, device='cuda')", KEEPS.format("this")],
         "retained after the cell": [KEEPS.format("this")]},
    )
    assert failing.count("KeyError: 'of the cell'") == 1 if where == "shell" else failing.count("KeyError") == 1
    assert "SyntaxError" in unparsed
    # The error follows the report, as under %%time.
    assert blocks(re.split("-{20}|KeyError", failing)[0]) == (
        "GPU 0, this cell: peak allocated 8.00 MiB; at start 4.00 MiB, at end 8.00 MiB (+4.00 MiB)",
        {"allocated at the peak": [KEEPS.format("another"), MAKES], "retained after the cell": [MAKES]},
    )
    # Bytes of the cell in between do not belong to this one.
    assert blocks(clearing) == (
        "GPU 0, this cell: peak allocated 8.00 MiB; at start 8.00 MiB, at end 0 B (-8.00 MiB)",
        {"allocated at the peak": [KEEPS.format("another"), MAKES]},
    )
    assert asked == "0\n"
    [cell] = run.report()["phases"]
    assert (cell["name"], cell["count"]) == ("cell", 4), "the cell without a GPU call ended before the recording began"
