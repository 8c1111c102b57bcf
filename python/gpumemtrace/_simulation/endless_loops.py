"""Ends a program in a `while` loop that waits for a result that is not computed here.

Such a loop is one with a condition that reads placeholders, or a `while True` with a `break`,
`return` or `raise` in an `if` that reads them. A loop that also has a bound of its own is left
alone, and so is each function that has ever returned from such a loop.
"""

import ast
import functools
import linecache
import sys
from types import CodeType, FrameType
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

#: Rounds after which it is watched whether the function returns, and after which the program ends.
SUSPICIOUS, ENDLESS = 5_000, 10_000

#: The line of the `while` that a line decides about; `None` for other lines.
_decided: Dict[Tuple[CodeType, int], Optional[int]] = {}
_rounds: Dict[Tuple[CodeType, int], int] = {}
_finite: Set[CodeType] = set()
#: The lines that read placeholders.
_reading: Dict[CodeType, Set[int]] = {}


def endless_loop(frame: Optional[FrameType]) -> Optional[Tuple[str, int]]:
    """Handles a read of placeholders in this frame. Returns the file and line of a loop around it
    that has not ended after many rounds."""
    while frame is not None:
        code = frame.f_code
        key = (code, frame.f_lineno)
        _reading.setdefault(code, set()).add(frame.f_lineno)
        if key not in _decided:
            _decided[key] = _loop_at(code.co_filename, frame.f_lineno)
        line = _decided[key]
        if line is not None and code not in _finite:
            rounds = _rounds[code, line] = _rounds.get((code, line), 0) + 1
            if rounds == SUSPICIOUS and sys.getprofile() is None:
                _watch_return_of(code)
            elif rounds >= ENDLESS and sys.getprofile() is _on_event:
                if not _has_bound(code, line):
                    return code.co_filename, line
                _rounds[code, line] = 0
        frame = frame.f_back
    return None


def _loop_at(file: str, line: int) -> Optional[int]:
    """The line of the innermost `while` that a line decides about."""
    return max((loop.lineno for loop in _loops_of(file) if _decides(loop, line)), default=None)


@functools.lru_cache(maxsize=None)
def _loops_of(file: str) -> List[ast.While]:
    """All `while` loops of a file. Every frame around a read asks for those of its file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.While)]


def _has_bound(code: CodeType, line: int) -> bool:
    """True if the loop at a line also ends on a condition that has read no placeholders."""
    tests = [test for loop in _loops_of(code.co_filename) if loop.lineno == line for test in _tests_of(loop)]
    return not all(any(_is_in(test, read) for read in _reading[code]) for test in tests)


def _decides(loop: ast.While, line: int) -> bool:
    return any(_is_in(test, line) for test in _tests_of(loop))


def _tests_of(loop: ast.While) -> List[ast.expr]:
    """The condition of a loop, or those of a `while True` to leave it."""
    if not isinstance(loop.test, ast.Constant):
        return [loop.test]
    leaving = (ast.Break, ast.Return, ast.Raise)
    return [
        node.test
        for node in _inside(loop)
        if isinstance(node, ast.If) and any(isinstance(inner, leaving) for inner in ast.walk(node))
    ]


def _is_in(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= (node.end_lineno or node.lineno))


def _inside(loop: ast.While) -> Iterator[ast.AST]:
    """The statements of a loop, without those of inner loops and functions."""
    waiting = list(ast.iter_child_nodes(loop))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.While, ast.For, ast.AsyncFor, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))


_watched: Set[CodeType] = set()


def _watch_return_of(code: CodeType) -> None:
    _watched.add(code)
    sys.setprofile(_on_event)


def _on_event(frame: FrameType, event: str, _argument: Any) -> None:
    if event == "return" and frame.f_code in _watched:
        _watched.discard(frame.f_code)
        _finite.add(frame.f_code)
        if not _watched:
            sys.setprofile(None)
