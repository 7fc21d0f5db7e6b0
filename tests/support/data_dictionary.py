"""docs/data-dictionary.md: every table and view, column by column, from the comments that the database has.

They are read from the migrations' files, and the types of a table's columns from what the code declares; a
test holds both equal to a database.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.dialects import postgresql

from server.store.tables import ALL_TABLES

_MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
_COMMENT = re.compile(
    r"^comment on (?:table|view|function|column) (\S+(?: \S+\))?) is '((?:[^']|'')*)';$", re.MULTILINE
)


def table_comments() -> dict[str, str]:
    """Comments of tables and, as `table.column`, of their columns, in the order of the files."""
    return _comments("tables")


def view_comments() -> dict[str, str]:
    """Comments of the schema `admin`, by the name of what they are about, in the order of the files."""
    return _comments("views/admin")


def _comments(folder: str) -> dict[str, str]:
    files = sorted((_MIGRATIONS / folder).glob("*.sql"))
    found = [match for file in files for match in _COMMENT.finditer(file.read_text(encoding="utf-8"))]
    return {match[1]: match[2].replace("''", "'") for match in found}


def dictionary() -> str:
    """Markdown: a section for each view and table, with a row for each column."""
    return "\n".join([*_views(), *_tables()]) + "\n"


def _views() -> Iterator[str]:
    yield "\n## Views and functions of the schema `admin`"
    comments = view_comments()
    for name, comment in comments.items():
        if "(" in name:
            yield f"\n### `{name}`\n\n{_sentence(comment)}"
        elif name.count(".") == 1:
            yield f"\n### `{name}`\n\n{_sentence(comment)}\n\n| column | is |\n| --- | --- |"
            columns = [(inner, says) for inner, says in comments.items() if inner.startswith(f"{name}.")]
            for column, says in columns:
                yield f"| `{column.rpartition('.')[2]}` | {_cell(says)} |"


def _tables() -> Iterator[str]:
    yield "\n## Tables"
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    comments = table_comments()
    for name, table in sorted(ALL_TABLES.tables.items()):
        head = "| column | type | is |\n| --- | --- | --- |"
        yield f"\n### `{name}`\n\n{_sentence(comments[name])}\n\n{head}"
        for full, says in comments.items():
            if full.startswith(f"{name}."):
                column = table.columns[full.partition(".")[2]]
                kind = column.type.compile(dialect).lower()
                null = "" if column.nullable else ", not null"
                yield f"| `{column.name}` | {kind}{null} | {_cell(says)} |"


def _sentence(comment: str) -> str:
    return f"{comment[:1].upper()}{comment[1:]}."


def _cell(comment: str) -> str:
    return comment.replace("|", "\\|")
