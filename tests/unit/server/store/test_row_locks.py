"""Statements that lock rows keep away from a fault of Postgres 18, by which it reads freed memory.

Where a row to lock has changed since the statement began, Postgres checks the new one with a copy of the
plan. It prepares all common table expressions anew for the copy, with the choice of partitions that the
statement itself uses later, and frees that when the last row is locked. So after a common table expression
that locks rows, none may read a partitioned table; the statement at the end, of which there is no copy, may.
Releases of 18 until October 2026 have the fault, and crash.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator

from sqlalchemy import TextClause

import server.store
from server.store.schema.partitions import TABLES

LOCKS = re.compile(r"\bfor (no key update|update|share|key share)\b")
NAMED = re.compile(r"\w+ as (?:materialized )?\(")
PARTITIONED = re.compile(rf"\b(?:from|join|update|using) (?:{'|'.join(TABLES)})\b")


def test_after_rows_are_locked_no_common_table_expression_reads_a_partitioned_table() -> None:
    locking = [(name, query) for name, query in statements() if LOCKS.search(query)]
    assert len(locking) > 20
    for name, query in locking:
        assert not endangered(query), name


def test_such_a_statement_is_found() -> None:
    lock = "with mine as materialized (select id from responses where (a) in (b) for update)"
    change = "update items r set a = 0 from mine"
    assert endangered(f"{lock}, changed as ({change}) select 1") == ["changed"]
    assert endangered(f"{lock} {change}") == []
    assert endangered("with a as (select 1 from items), b as (select 1 from a for update) select 1") == []


def statements() -> Iterator[tuple[str, str]]:
    """The constant statements of the store, by name."""
    for module in pkgutil.walk_packages(server.store.__path__, "server.store."):
        for name, value in vars(importlib.import_module(module.name)).items():
            for statement in value if isinstance(value, list | tuple) else [value]:
                if isinstance(statement, TextClause):
                    yield f"{module.name}.{name}", str(statement).lower()


def endangered(query: str) -> list[str]:
    """The common table expressions that read a partitioned table after one that locks rows."""
    found, is_locked = list[str](), False
    for match in NAMED.finditer(query):
        body = query[match.end() : closing(query, match.end())]
        if is_locked and PARTITIONED.search(body):
            found.append(match[0].split()[0])
        is_locked = is_locked or bool(LOCKS.search(body))
    return found


def closing(query: str, start: int) -> int:
    """Where the parenthesis closes whose inside begins at `start`."""
    depth = 1
    for place in range(start, len(query)):
        depth += {"(": 1, ")": -1}.get(query[place], 0)
        if depth == 0:
            return place
    raise AssertionError("it does not close")
