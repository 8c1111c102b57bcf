"""Doc comments say more than three words.

Rust: `///` and `//!` comments of one line. Python: docstrings of one line.
"""

import re

from .result import Result, Violation

LIMIT = 3
_WORD = re.compile(r"[A-Za-z0-9_][\w.:'-]*")


def check(tree, _exemptions):
    violations, scanned = [], 0
    for file in tree.by_language("rust", "python"):
        for doc in file.lexed.docs:
            scanned += 1
            text = [line for line in doc.lines if line]
            words = _WORD.findall(" ".join(text))
            if len(text) <= 1 and len(words) <= LIMIT:
                problem = f'doc comment "{" ".join(text)}" has {len(words)} word{"" if len(words) == 1 else "s"}'
                advice = "say units, None, errors, order or cost, or make the item private"
                violations.append(Violation(file.path, doc.number, problem, advice))
    return Result(scanned, violations)
