"""Words and phrases that make text read as if translated.

Rates: occurrences per comment line may not exceed samply's. Source of samply's numbers: *.rs files
of github.com/mstange/samply at cd24993 (2026-08-04), lines that begin with `// `, `/// ` or `//! `.
There 22 lines have "whose", 2 have "nobody" or its kin, 1 has "told"; style.md counted the same
words over 6,326 lines (6,315 by this pattern).

Phrases: wording in text for users that has a plain counterpart. They are searched in Markdown,
comments and the string literals of shipped code.
"""

import re

from .result import Result, Violation

SAMPLY_COMMENT_LINES = 6326
# Label: (pattern, occurrences in samply, what to write instead).
WORDS = {
    "whose": (re.compile(r"\bwhose\b", re.I), 22, "name the owner: `the block's stream`, `with a stream that`"),
    "nobody, somebody, whoever, anybody": (
        re.compile(r"\b(nobody|somebody|whoever|anybody)\b", re.I),
        2,
        "name the component that acts",
    ),
    "told": (re.compile(r"\btold\b", re.I), 1, "say which component reports what"),
}

# Pattern: what to write instead. Keep it short: each row is a phrase that users stumbled over.
PHRASES = {
    re.compile(r"(?<![%\w])(\d|\{[^{}\n]*\}|%[\d.]*[dfgs]) %{1,2}(?![\w(%{])"): "no space before the sign: `100%`",
    re.compile(r"\b(lets?|letting) (nobody|somebody|us|it|the library) in\b"): "`allows injection`",
    re.compile(r"\b(for|of|to|by) whom\b"): "name the component or the user",
    re.compile(r"\bnobody's\b"): "say which component owns it",
    re.compile(r"\bends? by itself\b|\bended by itself\b", re.I): "`exits normally`",
    re.compile(r"\bwould find room\b|\bfind room without\b"): "`fit without a new cudaMalloc`",
    re.compile(r"\bsegments that live blocks keep\b"): "`pinned by live blocks in the same segment`",
    re.compile(r"\bkeeps? more and more\b"): "`+4.00 MiB per step`",
    re.compile(r"\bIn short\b"): "`Summary`",
    re.compile(r"\bnobody knows\b|\bno one knows\b", re.I): "`unknown`",
    re.compile(r"\bhold(s|ing)? (a|the) (trace|run) against\b", re.I): "`check a trace against a budget`",
    re.compile(r"\bthe trace does not tell\b|\bdoes not say so\b"): "`untested` or `unknown`",
    re.compile(r"\bit never happened\b", re.I): "`No out-of-memory errors.`",
    re.compile(r"\bis told (by|from)\b|\bare told (by|from)\b"): "`is detected from`",
}


def _comment_kind(file):
    return "Markdown" if file.language == "markdown" else "comments"


def count(tree):
    """For comments and for Markdown: the number of lines, and per word its places."""
    lines = {"comments": 0, "Markdown": 0}
    places = {kind: {word: [] for word in WORDS} for kind in lines}
    for file in tree.prose():
        kind = _comment_kind(file)
        for line in file.lexed.comments:
            lines[kind] += bool(line.own_line and line.text)
            for word, (pattern, _, _) in WORDS.items():
                places[kind][word] += [(file.path, line.number)] * len(pattern.findall(line.text))
    return lines, places


def check_rates(tree, _exemptions):
    """Words of style.md's table: at most samply's rate in comments, none in text for users."""
    lines, places = count(tree)
    violations = []
    for kind, words in places.items():
        for word, found in words.items():
            _, in_samply, advice = WORDS[word]
            allowed = in_samply * lines[kind] // SAMPLY_COMMENT_LINES
            if len(found) > allowed:
                problem = f'"{word}" occurs {len(found)} times in {lines[kind]} lines of {kind}, {allowed} are allowed'
                violations += [Violation(path, number, problem, advice) for path, number in found]
    for file in tree.prose():
        for literal in _user_strings(file):
            for word, (pattern, _, advice) in WORDS.items():
                for match in pattern.finditer(literal.text):
                    number = literal.number + literal.text.count("\n", 0, match.start())
                    violations.append(Violation(file.path, number, f'"{match.group()}" in text for users', advice))
    return Result(sum(lines.values()), violations)


def check_phrases(tree, _exemptions):
    """Phrases that users stumbled over, such as a space before a percent sign."""
    violations, scanned = [], 0
    for file in tree.prose():
        texts = [(line.number, line.text) for line in file.lexed.comments]
        texts += [(literal.number, literal.text) for literal in _user_strings(file)]
        scanned += len(texts)
        for number, text in texts:
            for pattern, advice in PHRASES.items():
                for match in pattern.finditer(text):
                    line = number + text.count("\n", 0, match.start())
                    violations.append(Violation(file.path, line, f"`{match.group()}`", f"write {advice}"))
    return Result(scanned, violations)


def _user_strings(file):
    """String literals of shipped Rust and Python code."""
    if file.language not in ("rust", "python") or file.is_test:
        return []
    return file.lexed.strings


def rates_table(tree):
    """The table of the style guide: lines, and each word's count and rate beside samply's."""
    lines, places = count(tree)
    rows = [f"{'':38}{'lines':>8}" + "".join(f"{word.split(',')[0]:>16}" for word in WORDS)]
    for kind in lines:
        cells = [(len(places[kind][word]), lines[kind]) for word in WORDS]
        rows.append(f"{'this tree: ' + kind:38}{lines[kind]:>8}" + "".join(_cell(*cell) for cell in cells))
    samply = [(in_samply, SAMPLY_COMMENT_LINES) for _, in_samply, _ in WORDS.values()]
    rows.append(f"{'samply: comments':38}{SAMPLY_COMMENT_LINES:>8}" + "".join(_cell(*cell) for cell in samply))
    return "\n".join(rows + ["Each cell: occurrences, and their rate per 1,000 lines."])


def _cell(found, lines):
    return f"{f'{found} ({1000 * found / max(lines, 1):.2f})':>16}"
