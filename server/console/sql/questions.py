"""The questions of docs/sql.md, which `questions.sql` ships: a line with the title, one with the query."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

_FILE = Path(__file__).parent / "questions.sql"


class Question(NamedTuple):
    title: str
    query: str


@cache
def questions() -> tuple[Question, ...]:
    """All of them in the order of the document."""
    found: list[Question] = []
    title = ""
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("-- "):
            title = line.removeprefix("-- ")
        elif line:
            found.append(Question(title, line))
    return tuple(found)
