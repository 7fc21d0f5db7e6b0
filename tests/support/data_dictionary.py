"""docs/data-dictionary.md: every table and view, column by column, from the comments that the database has.

Tables are read from what the code declares, views from the files that make them; a test holds both equal to
the comments in a database.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.dialects import postgresql

from server.store.administration.operator_tables import ALL_TABLES

ADMIN_VIEWS = Path(__file__).resolve().parents[2] / "migrations" / "views" / "admin"
_COMMENT = re.compile(
    r"^comment on (view|function|column) (admin\.\S+(?: \S+\))?) is '((?:[^']|'')*)';$", re.MULTILINE
)


def view_comments() -> dict[str, str]:
    """Comments of the schema `admin`, by the name of what they are about, in the order of the files."""
    files = sorted(ADMIN_VIEWS.glob("*.sql"))
    found = [match for file in files for match in _COMMENT.finditer(file.read_text(encoding="utf-8"))]
    return {match[2]: match[3].replace("''", "'") for match in found}


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
    for name, table in sorted(ALL_TABLES.tables.items()):
        head = "| column | type | is |\n| --- | --- | --- |"
        yield f"\n### `{name}`\n\n{_sentence(table.comment or '')}\n\n{head}"
        for column in table.columns:
            kind = column.type.compile(dialect).lower()
            null = "" if column.nullable else ", not null"
            yield f"| `{column.name}` | {kind}{null} | {_cell(column.comment or '')} |"


def _sentence(comment: str) -> str:
    return f"{comment[:1].upper()}{comment[1:]}."


def _cell(comment: str) -> str:
    return comment.replace("|", "\\|")
