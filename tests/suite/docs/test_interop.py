"""docs/exports/interop.md has a row for each format of `export`, with the versions of the readers."""

import re
import subprocess

from conftest import COMMAND, REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "benchmarks" / "exports"


def export_formats():
    text = subprocess.run([COMMAND, "export", "--help"], capture_output=True, text=True, check=True).stdout
    formats = re.findall(r"^  ([\w-]+)  ", text.split("Formats:\n")[1].split("\n\n")[0], re.M)
    assert "parquet" in formats
    return formats


def test_each_format_has_a_row_with_present_versions():
    formats = export_formats()
    assert len(formats) >= 4
    page = (REPOSITORY / "docs" / "exports" / "interop.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \|", page, re.M)
    assert [format for format, _ in rows] == formats, f"run {SCRIPT.relative_to(REPOSITORY)}"
    readers = (REPOSITORY / "tests" / "readers.txt").read_text() + (REPOSITORY / "tests" / "readers" / "package.json").read_text()
    # These set up what is in no list of packages.
    scripts = "".join((REPOSITORY / "scripts" / name).read_text() for name in ("test", "setup/readers", "setup/trace-processor"))
    for _, named in rows:
        for name, version in re.findall(r"([@\w./-]+) (\d[\d.]*)(?=,|$)", named):
            if name in ("PyTorch", "processor"):
                assert version in scripts, f"no script sets up {name} {version}"
                continue
            assert f"{name}=={version}" in readers or f'"{name}": "{version}"' in readers, f"{name} {version} is not what is installed"


def test_each_format_is_in_the_index_of_exports():
    index = (REPOSITORY / "docs" / "exports" / "index.md").read_text()
    for format in export_formats():
        assert f"`{format}`" in index, f"docs/exports/index.md does not name {format}"
