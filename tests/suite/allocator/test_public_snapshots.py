"""scripts/setup/public-snapshots: downloads, continues, and refuses what is not in its list."""

import hashlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "setup" / "public-snapshots"
DATA, COMMIT = bytes(range(256)) * 40, "0" * 40
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@pytest.fixture
def server():
    """Serves `server.files` by path, with ranges, and keeps the requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            data, wanted = server.files.get(self.path), self.headers.get("Range")
            server.requests.append((self.path, wanted))
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            self.send_response(404 if data is None else 206 if wanted else 200)
            self.end_headers()
            self.wfile.write((data or b"")[start:])

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.requests = {}, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def row(path, data=DATA):
    return {"repository": "owner/name", "commit": COMMIT, "path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def fetch(server, folder, rows):
    names = folder / "list.json"
    names.write_text(json.dumps(rows))
    base = f"http://127.0.0.1:{server.server_port}"
    done = subprocess.run([sys.executable, SCRIPT, folder, "--list", names, "--raw", f"{base}/raw", "--large-files", f"{base}/lfs"],
                          capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr.splitlines()


def test_files_are_downloaded_once(server, tmp_path):
    server.files[f"/raw/owner/name/{COMMIT}/a%20b.pickle"] = DATA
    server.files[f"/raw/owner/name/{COMMIT}/large.pickle"] = POINTER
    server.files[f"/lfs/owner/name/{COMMIT}/large.pickle"] = DATA
    rows = [row("a b.pickle"), row("large.pickle")]
    assert fetch(server, tmp_path, rows) == (0, f"2 of 2 snapshots in {tmp_path}, 2 of them new\n", [])
    assert [(tmp_path / "owner/name" / COMMIT / name["path"]).read_bytes() for name in rows] == [DATA, DATA]
    server.requests.clear()
    assert fetch(server, tmp_path, rows) == (0, f"2 of 2 snapshots in {tmp_path}, 0 of them new\n", [])
    assert not server.requests


def test_a_stopped_download_is_continued(server, tmp_path):
    path = f"/raw/owner/name/{COMMIT}/a.pickle"
    server.files[path] = DATA[:1000]
    code, _, errors = fetch(server, tmp_path, [row("a.pickle")])
    assert (code, errors) == (1, [f"public-snapshots: owner/name a.pickle: 1000 of {len(DATA)} bytes; run this again to continue"])
    server.files[path] = DATA
    assert fetch(server, tmp_path, [row("a.pickle")])[0] == 0
    assert server.requests[-1] == (path, "bytes=1000-")


def test_each_failure_has_one_line(server, tmp_path):
    server.files[f"/raw/owner/name/{COMMIT}/changed.pickle"] = DATA[::-1]
    server.files[f"/raw/owner/name/{COMMIT}/good.pickle"] = DATA
    code, output, errors = fetch(server, tmp_path, [row("gone.pickle"), row("changed.pickle"), row("good.pickle")])
    assert (code, output) == (1, f"1 of 3 snapshots in {tmp_path}, 1 of them new\n")
    assert errors == ["public-snapshots: owner/name gone.pickle: HTTP 404 Not Found",
                      "public-snapshots: owner/name changed.pickle: the file has another SHA-256 than the list"]
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(left) == ["good.pickle", "list.json"]
