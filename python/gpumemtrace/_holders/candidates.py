"""Asks `gpumemtrace run` for the leaked blocks of this process, over a socket.

During the run, the program must see no child process of ours: not in `os.wait()`, and not as
`SIGCHLD`. So `gpumemtrace run`, which waits for the program anyway, reads the trace. `_socket` is
used instead of `socket`, because gevent and others replace the classes of the latter.
"""

import _socket
import os
import time
from typing import Any, Dict, List, Optional

from .library import ScanFailed, parse_candidates

#: The path of the socket, set by `gpumemtrace run --holders`.
SOCKET_VARIABLE = "GPUMEMTRACE_HOLDERS_SOCKET"
_PART_BYTES = 1 << 20


class CandidateReader:
    """Reads leak candidates, one request at a time. `close()` may be called by another thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: Optional[_socket.socket] = None
        self._is_closed = False

    def has_growth(self, trace: str, limit_s: float) -> bool:
        """Whether any leak has live blocks. Raises `ScanFailed`."""
        # Parsing the lists of blocks would hold the GIL for longer.
        return b'"listed"' in self._request(trace, limit_s)

    def read(self, trace: str, limit_s: float) -> List[Dict[str, Any]]:
        """The leaks so far, with the addresses of their blocks. Raises `ScanFailed`."""
        reply = self._request(trace, limit_s)
        return parse_candidates(reply, reply[:200].decode("utf-8", "replace") or "no answer from gpumemtrace run")

    def close(self) -> None:
        """Ends a request that is waiting."""
        self._is_closed = True
        connection = self._socket
        if connection is not None:
            try:
                connection.shutdown(_socket.SHUT_RDWR)
            except OSError:
                return

    def _request(self, trace: str, limit_s: float) -> bytes:
        deadline = time.monotonic() + limit_s
        parts: List[bytes] = []
        connection = self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0)
        try:
            if self._is_closed:
                raise ScanFailed("the program is ending")
            connection.settimeout(limit_s)
            connection.connect(self._path)
            connection.sendall(b"%d\n" % int(limit_s * 1000) + os.fsencode(trace))
            connection.shutdown(_socket.SHUT_WR)
            while not parts or parts[-1]:
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                parts.append(connection.recv(_PART_BYTES))
        except _socket.timeout:
            raise ScanFailed(f"reading the trace took longer than {limit_s:g} s") from None
        except OSError as error:
            raise ScanFailed(f"cannot ask gpumemtrace run: {error}") from None
        finally:
            self._socket = None
            connection.close()
        return b"".join(parts)
