"""What keeps the code findable: sizes, borders that imports cannot show, and pages made from the code."""

import ast
import functools
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import documents

ROOT = documents.ROOT
SOURCES = sorted(
    path
    for folder in ("server", "engine", "tool_servers", "migrations", "demo", "bench", "tests")
    for path in (ROOT / folder).rglob("*.py")
)
OURS = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in ("server", "engine", "tool_servers")]
_OURS = frozenset(OURS)
MAX_LINES = 600
MAX_FUNCTION_LINES = 60
BANNED_NAMES = {"utils", "util", "helpers", "common", "manager", "misc", "service"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class _Function:
    name: str
    lines: int
    is_asynchronous: bool


@dataclass(frozen=True)
class _Source:
    """What the tests here ask of a file, which is parsed once; `reads` of ours alone."""

    docstring: str | None
    functions: tuple[_Function, ...]
    classes: tuple[str, ...]
    reads: frozenset[str]
    """Names of attributes that are read, and names that are imported from modules."""


@functools.cache
def _source(path: Path) -> _Source:
    functions, classes, reads = [], [], set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if path in _OURS else _statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            functions.append(_Function(node.name, lines, isinstance(node, ast.AsyncFunctionDef)))
        elif isinstance(node, ast.ClassDef):
            classes.append(node.name)
        elif isinstance(node, ast.Attribute):
            reads.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            reads |= {alias.name for alias in node.names}
    return _Source(ast.get_docstring(tree), tuple(functions), tuple(classes), frozenset(reads))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node: a tenth of what `ast.walk` finds."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from _statements(child)


def test_no_file_is_longer_than_600_lines() -> None:
    long = {_name(path): size for path in SOURCES if (size := len(path.read_text().splitlines())) > MAX_LINES}
    assert long == {}


def test_no_function_is_longer_than_60_lines() -> None:
    long = {
        f"{_name(path)}:{function.name}": function.lines
        for path in SOURCES
        for function in _source(path).functions
        if function.lines > MAX_FUNCTION_LINES
    }
    assert long == {}


def _rooms() -> dict[str, list[Path]]:
    """The files of each room: a folder of `server`, `engine` or `tool_servers` and all below, and the files
    that lie directly in one of the three.
    """
    rooms: dict[str, list[Path]] = {}
    for path in OURS:
        rooms.setdefault("/".join(path.relative_to(ROOT).parts[:-1][:2]), []).append(path)
    return rooms


def test_each_room_keeps_to_its_budget_of_lines() -> None:
    """A new bound, retry or mode replaces one: look for that first. A new capability has lines of its own."""
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["holdfast"]["lines"]
    rooms = _rooms()
    assert sorted(budgets) == sorted(rooms), "pyproject.toml has a budget for each room, and for no other"
    over = []
    for room, paths in rooms.items():
        lines = {path: len(path.read_text().splitlines()) for path in paths if path.stem != "__init__"}
        if (excess := sum(lines.values()) - budgets[room]) > 0:
            small = ", ".join(map(_name, sorted(lines, key=lines.__getitem__)[:4]))
            over.append(
                f"{room} has {excess} lines more than its budget. Delete the mechanism that the new one "
                f"replaces; merge files that are one subject (the smallest: {small})."
            )
    assert not over, "\n".join(over)


def test_a_public_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in OURS:
        for name in _source(path).classes:
            if not name.startswith("_"):
                places.setdefault(name, []).append(_name(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [_name(path) for path in SOURCES if path.stem in BANNED_NAMES] == []


def test_no_link_is_in_the_repository() -> None:
    """A link to a folder of somebody's machine looks like the folder there, and leads nowhere elsewhere."""
    listed = subprocess.run(
        ["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert not [line for line in listed.splitlines() if line.startswith("120000")]


def test_every_module_of_ours_says_what_it_is_for() -> None:
    silent = [_name(path) for path in OURS if not _source(path).docstring]
    assert silent == []


def test_asynchronous_code_is_where_bytes_are_moved_and_nowhere_else() -> None:
    found = {_name(path) for path in OURS for function in _source(path).functions if function.is_asynchronous}
    # MCP's library is asynchronous; the other halves are plain functions.
    mcp = {f"tool_servers/{name}.py" for name in ("mcp_host", "runner/mcp_server", "browser/mcp_server")}
    mcp |= {
        "tool_servers/browser/fetch.py",
        "server/hosted_tools/mcp_session.py",
        "server/outbound_http/guarded_http.py",
        "engine/fair_limit.py",
    }
    moves_bytes = ("server/http/asgi/", "server/http/websocket/", "engine/remote/")
    assert {name for name in found if not name.startswith(moves_bytes)} == mcp


@pytest.mark.parametrize("name", ["environ", "getenv"])
def test_the_environment_is_read_by_the_configuration_only(name: str) -> None:
    readers = {_name(path) for path in OURS if name in _source(path).reads}
    # The last one reads that of its sandbox.
    assert readers <= {
        "server/configuration/environment.py",
        "tool_servers/mcp_host.py",
        "tool_servers/runner/sandboxed_interpreter.py",
    }


def test_a_handler_has_at_most_25_lines() -> None:
    long = [
        f"{_name(path)}:{function.name}"
        for path in (ROOT / "server" / "http" / "handlers").glob("*.py")
        for function in _source(path).functions
        if function.lines > 25
    ]
    assert long == []


@pytest.mark.parametrize("page", documents.GENERATED, ids=lambda page: page.name)
def test_a_generated_page_is_what_the_code_says(page: Path) -> None:
    written = page.read_text(encoding="utf-8")
    assert written == documents.expected(page), "run: python -m tests.support.documents"


def test_every_folder_and_file_in_the_tree_says_what_it_is_for() -> None:
    silent = [
        line for line in documents.tree().splitlines() if line != "tests/" and len(line.split(maxsplit=1)) < 2
    ]
    assert silent == []
