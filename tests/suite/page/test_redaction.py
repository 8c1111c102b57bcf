"""`html --redact`: a page for strangers names no host, no argument and no directory."""

import base64
import json
import re
import socket
import zlib

import pytest

from conftest import gpumemtrace
from page_file import PageFile

# All text of a page but its own script and style.
BLOB = re.compile(r'<script type="application/octet-stream" id="(\w+)">([^<]*)</script>')


def texts_of(path):
    page = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", path.read_text(), flags=re.DOTALL)
    blobs = {name: zlib.decompress(base64.b64decode(blob), wbits=-15) for name, blob in BLOB.findall(page)}
    yield BLOB.sub("", page)
    yield blobs["report"].decode()
    yield blobs["data"].decode()


@pytest.mark.parametrize("compared", [False, True])
def test_redacted_page_names_no_host_argument_or_directory(run_python, torch_version, tmp_path, compared):
    run = run_python(torch_version, "training/train.py", "--steps", "12", real_start=True)
    beside = ["--compare", run.trace] if compared else []
    plain, redacted = tmp_path / "plain.html", tmp_path / "redacted.html"
    gpumemtrace("html", run.trace, "-o", plain, *beside)
    gpumemtrace("html", run.trace, "-o", redacted, "--redact", *beside)
    host = socket.gethostname()
    secrets = [str(run.trace.parent), "/tests/workloads/", "/site-packages/", '"--steps"', "--steps 12", f'"host": "{host}"']
    before = "".join(texts_of(plain))
    assert [secret for secret in secrets if secret in before] == secrets, "the plain page has them all"
    for text in texts_of(redacted):
        assert [secret for secret in secrets if secret in text] == []
        assert f'"{host}"' not in text
    # All the rest is there.
    reports = [json.loads(PageFile(page).report_bytes) for page in (plain, redacted)]
    assert [report["devices"] for report in reports][0] == reports[1]["devices"]
    sites = [[(row["site"]["line"], row["bytes"]) for row in report["peak"][0]["sites"]] for report in reports]
    assert sites[0] == sites[1]
    assert reports[1]["traces"][0]["command"][-1] == "train.py"
