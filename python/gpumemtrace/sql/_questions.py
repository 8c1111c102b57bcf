"""The questions: SQL files, whose first lines say what they mean, take and return."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, Tuple, Union

from ._errors import QueryError

#: The value of a parameter.
Value = Union[int, float, str]

_FOLDER = Path(__file__).resolve().parent / "questions"
_PARAMETER = re.compile(r"(\w+) (BIGINT|DOUBLE|VARCHAR)( \(commit\))? = (\S+): (.+)")
_COLUMN = re.compile(r"(\w+) (BIGINT|DOUBLE|VARCHAR|BOOLEAN)(?: \(([^)]+)\))?: (.+)")
#: The line that stands for the SQL of another file.
_INCLUDE = re.compile(r"(?m)^-- include (_\w+\.sql)\n")
#: Comments and strings, which are left as they are, and the names of parameters.
_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|:(\w+)")
#: Python types by SQL type. `True` is no number here.
_TYPES: Dict[str, Tuple[type, ...]] = {"BIGINT": (int,), "DOUBLE": (int, float), "VARCHAR": (str,)}
_PARSERS: Dict[str, Callable[[str], Value]] = {"BIGINT": int, "DOUBLE": float, "VARCHAR": str}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a question: name, SQL type, value if it is not given, and meaning.

    `is_commit` is true if `query()` takes the beginning of a commit's hash. The SQL needs all of
    it.
    """

    name: str
    type: str
    default: Value
    meaning: str
    is_commit: bool = False

    def parse(self, text: str) -> Value:
        """The value that a text on the command line stands for."""
        try:
            return _PARSERS[self.type](text)
        except ValueError:
            raise QueryError(f"parameter {self.name} is {text!r}, and must be a {self.type}") from None

    def check(self, value: Value) -> Value:
        """The value, in the type that engines get. Raises `QueryError` if its type is wrong."""
        if isinstance(value, bool) or not isinstance(value, _TYPES[self.type]):
            raise QueryError(f"parameter {self.name} is {value!r}, and must be a {self.type}")
        return float(value) if self.type == "DOUBLE" else value


@dataclass(frozen=True)
class Column:
    """A column of an answer: name, SQL type, unit (empty for names and texts), and meaning."""

    name: str
    type: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Question:
    """A question: its meaning, how it is computed, its parameters and columns, and its SQL."""

    name: str
    meaning: str
    details: str
    parameters: Tuple[Parameter, ...]
    columns: Tuple[Column, ...]
    sql: str

    def translate(self, mark: str) -> str:
        """The SQL with `mark` before the names of parameters."""
        return _TOKEN.sub(lambda found: mark + found[1] if found[1] else found[0], self.sql)

    def words(self) -> List[str]:
        """All names and keywords of the SQL."""
        return re.findall(r"\w+", _TOKEN.sub("", self.sql))

    def values(self, given: Mapping[str, Value]) -> Dict[str, Value]:
        """A value for each parameter. Raises `QueryError` for an unknown one and a wrong type."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given:
            if name not in known:
                raise QueryError(f"{self.name} has no parameter {name}; it has {_listed(known) or 'none'}")
        return {name: parameter.check(given.get(name, parameter.default)) for name, parameter in known.items()}


@lru_cache(maxsize=None)
def questions() -> Tuple[Question, ...]:
    """All questions, by name."""
    return tuple(_read_question(path) for path in sorted(_FOLDER.glob("[!_]*.sql")))


def find_question(name: str) -> Question:
    """The question of this name. Raises `QueryError` with the nearest names."""
    known = {question.name: question for question in questions()}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
        raise QueryError(f"unknown question {name!r}; the nearest are {_listed(near)}")
    return known[name]


def _rule(name: str) -> str:
    """The SQL of a rule that questions share, without its comment."""
    return re.sub(r"(?m)\A(--.*\n)*", "", (_FOLDER / name).read_text(encoding="utf-8"))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _read_question(path: Path) -> Question:
    text = _INCLUDE.sub(lambda found: _rule(found[1]), path.read_text(encoding="utf-8"))
    head = [line[2:] for line in text.splitlines() if line.startswith("--")]
    sections: Dict[str, List[str]] = {"": [], "Parameters": [], "Columns": []}
    section = ""
    for line in head:
        if line.strip().rstrip(":") in sections and line.endswith(":"):
            section = line.strip().rstrip(":")
        elif section and line.startswith("     "):
            sections[section][-1] += " " + line.strip()
        else:
            sections[section].append(line.strip())
    meaning, *details = sections[""]
    parameters = [_read_parameter(_matched(_PARAMETER, line, path)) for line in sections["Parameters"]]
    columns = [_matched(_COLUMN, line, path) for line in sections["Columns"]]
    return Question(
        name=path.stem,
        meaning=meaning,
        details=" ".join(" ".join(details).split()),
        parameters=tuple(parameters),
        columns=tuple(Column(found[1], found[2], found[3] or "", found[4]) for found in columns),
        sql=text,
    )


def _read_parameter(found: re.Match[str]) -> Parameter:
    return Parameter(found[1], found[2], _PARSERS[found[2]](found[4].strip("'")), found[5], found[3] is not None)


def _matched(pattern: re.Pattern[str], line: str, path: Path) -> re.Match[str]:
    found = pattern.fullmatch(line)
    assert found is not None, f"{path.name}: {line!r} in its head has another form"
    return found
