"""Whatever ends a response has its webhooks written in the same transaction."""

import ast
import re
from pathlib import Path

from tests.support.documents import ROOT

ENDERS = {"server/recording/write_updates.py", "server/store/cluster/claims.py"}
UPDATE = re.compile(r"update responses\b[^\"]*?(?=where|from|\")", re.DOTALL)
SOURCES = sorted((ROOT / "server").rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def callers_of(module: str, function: str) -> set[str]:
    """The files with a call of `module.function`."""
    return {
        name(path)
        for path in SOURCES
        if f".{function}(" in (source := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{module}.{function}"
    }


def test_responses_are_ended_where_webhooks_are_enqueued_and_nowhere_else() -> None:
    assert callers_of("responses", "finish_all") == ENDERS
    assert callers_of("outbox", "enqueue") == ENDERS


def test_no_other_statement_sets_an_end_of_a_response() -> None:
    """The columns of an end are set by `finish_all` alone."""
    statements = {
        (name(path), statement)
        for path in SOURCES
        for statement in re.findall(
            r"update responses\b[^\"]*?(?=where|from|\")", path.read_text(), re.DOTALL
        )
        if re.search(r"finished_at\s*=|status\s*=\s*'(?!in_progress)", statement)
    }
    assert statements == set()
    importers = {
        name(path)
        for path in SOURCES
        if "columns_of" in (source := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        and node.module == "server.protocol.responses.response"
        and "columns_of" in {alias.name for alias in node.names}
    }
    assert importers == {"server/store/content/responses.py"}
