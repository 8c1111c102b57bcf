"""Splits source text into comments, strings and code.

`lex` returns a `Lexed`: comment lines, doc comments, string literals, and the code with comments
and string contents blanked (same length, same line breaks, so offsets stay valid). The patterns
are approximations that hold for this tree; they need no parser and no dependency.
"""

import re
from bisect import bisect_right
from collections import namedtuple

# `number` counts from 1. `text` has no comment marker. `end_column` is the width of the source
# line up to the end of the comment. `own_line` is false after code on the same line.
CommentLine = namedtuple("CommentLine", "number text end_column own_line")
# `lines` are the texts of one doc comment, from source line `number` on.
DocComment = namedtuple("DocComment", "number lines")
StringLiteral = namedtuple("StringLiteral", "number text")
Lexed = namedtuple("Lexed", "comments docs strings code line_starts")

_RUST = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      |(?P<string>[bc]?r(?P<hashes>\#*)".*?"(?P=hashes)|[bc]?"(?:\\.|[^"\\])*")
      |(?P<char>b?'(?:\\(?:u\{[0-9a-fA-F_]+\}|x[0-9a-fA-F]{2}|.)|[^\\'\n])')""",
    re.S | re.X,
)
_C = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>"(?:\\.|[^"\\\n])*")|(?P<char>'(?:\\.|[^'\\\n])*')""",
    re.S | re.X,
)
_PYTHON = re.compile(
    r"""(?P<comment>\#[^\n]*)
      |(?P<string>[A-Za-z]{0,2}(?P<quotes>\"\"\"|''')(?:\\.|.)*?(?P=quotes)
        |[A-Za-z]{0,2}"(?:\\.|[^"\\\n])*"|[A-Za-z]{0,2}'(?:\\.|[^'\\\n])*')""",
    re.S | re.X,
)
_TOML = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<string>\"\"\".*?\"\"\"|'''.*?'''|"(?:\\.|[^"\\\n])*"|'[^'\n]*')""", re.S | re.X
)
# Shell quoting is too free for a pattern: a `#` counts after white space outside of simple quotes.
_SHELL_COMMENT = re.compile(r"""^(?:[^"'#]|"[^"]*"|'[^']*'|(?<=\S)\#)*?(?:^|(?<=\s))\#(?P<text>[ \#].*|$)""")
_STRING_EDGES = re.compile(r"""^[A-Za-z]*\#*("{3}|'{3}|"|')|("{3}|'{3}|"|')\#*$""")
_COMMENT_MARKER = re.compile(r"^\s*(//!|///?|/\*[*!]?|\*(?!\*)|#!?)?")


def lex(text, language):
    """Splits `text`. Markdown yields its prose lines as comments and no code."""
    line_starts = [0] + [match.end() for match in re.finditer("\n", text)]
    if language == "markdown":
        return Lexed(_markdown_lines(text), [], [], "", line_starts)
    if language == "shell":
        return Lexed(_shell_comments(text), [], [], text, line_starts)
    pattern = {"rust": _RUST, "c": _C, "python": _PYTHON}.get(language, _TOML)
    return _lex_with(pattern, text, language, line_starts)


def line_of(lexed, offset):
    """The number, from 1, of the line that holds `offset`."""
    return bisect_right(lexed.line_starts, offset)


def _lex_with(pattern, text, language, line_starts):
    comments, docs, strings, code, position = [], [], [], [], 0
    for match in pattern.finditer(text):
        token = match.group()
        number = bisect_right(line_starts, match.start())
        before = text[line_starts[number - 1] : match.start()]
        code.append(text[position : match.start()])
        position = match.end()
        if match.group("comment"):
            comments += _comment_lines(token, number, before)
            if language == "rust":
                _add_rust_doc(docs, token, number, before)
        elif match.group("string"):
            if language == "python" and _is_docstring(code, before):
                body = _STRING_EDGES.sub("", token)
                comments += _comment_lines(body, number, before + token[: token.index(body)] if body else before)
                docs.append(DocComment(number, [line.strip() for line in body.split("\n")]))
            else:
                strings.append(StringLiteral(number, _STRING_EDGES.sub("", token)))
        code.append(_blank(token, bool(match.group("comment"))))
    code.append(text[position:])
    return Lexed(comments, docs, strings, "".join(code), line_starts)


def _blank(token, is_comment):
    """Spaces for a comment; a string keeps its quotes, so that code around it stays readable."""
    blank = re.sub(r"[^\n]", " ", token)
    if is_comment or len(token) < 2:
        return blank
    return '"' + blank[1:-1] + '"'


def _comment_lines(token, number, before):
    lines = []
    for index, line in enumerate(token.split("\n")):
        whole = before + line if index == 0 else line
        text = _COMMENT_MARKER.sub("", line).rstrip()
        if text.endswith("*/"):
            text = text[:-2].rstrip()
        own_line = index > 0 or not before.strip(" \t\"'rRbBuU")
        lines.append(CommentLine(number + index, text, len(whole.rstrip()), own_line))
    return lines


def _add_rust_doc(docs, token, number, before):
    """Joins `///` (or `//!`) lines that follow each other into one doc comment."""
    marker = token[:3]
    if marker not in ("///", "//!") or token.startswith("////"):
        return
    text = token[3:].strip()
    last = docs[-1] if docs else None
    if last and last.number + len(last.lines) == number and not before.strip():
        last.lines.append(text)
    else:
        docs.append(DocComment(number, [text]))


def _is_docstring(code, before):
    """Whether a string that follows `code` stands alone as the first statement of its block."""
    if before.strip():
        return False
    for chunk in reversed(code):
        stripped = chunk.rstrip()
        if stripped:
            return stripped.endswith(":")
    return True


def _shell_comments(text):
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        if number == 1 and line.startswith("#!"):
            continue
        match = _SHELL_COMMENT.match(line)
        if match:
            own_line = line.lstrip().startswith("#")
            lines.append(CommentLine(number, match.group("text").strip(), len(line.rstrip()), own_line))
    return lines


def _markdown_lines(text):
    """Prose lines: without code fences, tables, front matter and HTML comments."""
    lines, fence = [], None
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        opening = re.match(r"(`{3,}|~{3,})", stripped)
        if opening and (fence is None or stripped.startswith(fence)):
            fence = opening.group() if fence is None else None
            continue
        if fence is None and stripped and not stripped.startswith("|"):
            lines.append(CommentLine(number, stripped, len(line.rstrip()), True))
    return lines
