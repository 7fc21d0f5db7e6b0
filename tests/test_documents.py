"""What a machine can check of the documents: links, names, commands, states, and the way to the answers."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.cli import entry_point as cli
from server.configuration import settings as config
from server.http.routes import PUBLIC_ROUTES
from server.model_formats.tool_calls.format_table import TOOL_CALL_FORMATS
from tests.support import states
from tests.support.documents import ARCHITECTURE, DEVELOPMENT, README, ROOT, pages

PAGES = list(pages())
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
SECURITY = ROOT / "docs" / "security.md"
MOST_BYTES = 12_288
"""Of the README."""
ANSWERS = {
    "back it up": "docs/backup.md",
    "add a model format": "docs/models.md#adding-a-model-format",
    "add an endpoint": "docs/development.md#adding-an-endpoint",
    "Which settings": "docs/configuration.md#all-settings",
    "`kill -9`": "docs/operations.md#kill--9-and-crashes",
}
"""Words of a question in the README's table, and where its link must lead."""

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _prose(page: Path) -> str:
    """The page without what is fenced or in backticks."""
    return re.sub(r"`[^`\n]*`", "", _FENCED.sub("", TEXTS[page]))


def _anchors(page: Path) -> set[str]:
    """The names by which GitHub links to the page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCED.sub("", TEXTS[page]), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        count = 1
        unique = slug
        while unique in found:
            unique = f"{slug}-{count}"
            count += 1
        found.add(unique)
    return found


def _links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """The page's links into the repository: as written, the file, the anchor."""
    for link in _LINK.findall(_prose(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        yield link, (page.parent / path).resolve() if path else page, anchor


def _shell_lines() -> Iterator[tuple[str, str]]:
    """What stands behind a prompt in the pages: the page and the command, without comments."""
    for page, text in TEXTS.items():
        for _, kind, block in _FENCED.findall(text):
            if kind == "console":
                for line in block.splitlines():
                    if line.strip().startswith("$ "):
                        yield _name(page), line.strip()[2:]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link, path, anchor in _links(page):
        assert path.exists(), link
        if anchor:
            assert path in TEXTS, f"{link}: the anchors of this file are not known"
            assert anchor in _anchors(path), link


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= MOST_BYTES


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=_name)
def test_a_page_opens_with_whom_it_is_for(page: Path) -> None:
    title, blank, opening = TEXTS[page].splitlines()[:3]
    assert title.startswith("# ")
    assert blank == ""
    assert re.match(r"For (users|operators|developers|contributors)\b.*[:;]", opening), opening


def test_every_page_is_two_clicks_from_the_readme_at_most() -> None:
    near = {README}
    for _ in range(2):
        near |= {path for page in near & TEXTS.keys() for _, path, _ in _links(page)}
    assert {_name(page) for page in TEXTS.keys() - near} == set()


@pytest.mark.parametrize(("words", "answer"), ANSWERS.items(), ids=list(ANSWERS))
def test_the_readme_links_to_the_answer_of_a_newcomers_question(words: str, answer: str) -> None:
    rows = [line for line in TEXTS[README].splitlines() if line.startswith("|") and words in line]
    assert any(f"]({answer})" in row for row in rows), rows


def test_the_drawn_states_and_edges_are_those_of_the_code() -> None:
    (drawing,) = [block for _, kind, block in _FENCED.findall(TEXTS[ARCHITECTURE]) if kind == "mermaid"]
    arrows = re.findall(r"^ *(\S+) --> (\S+)$", drawing, re.MULTILINE)
    drawn = {(old, new) for old, new in arrows if "[*]" not in (old, new)}
    assert drawn == {(old, new) for old, others in states.TRANSITIONS.items() for new in others}
    assert {old for old, new in arrows if new == "[*]"} == states.TERMINAL_STATUSES


def test_every_setting_that_a_document_names_exists() -> None:
    known = {setting.variable for setting in config.settings()}
    for page, text in TEXTS.items():
        assert set(re.findall(r"\bHOLDFAST_[A-Z_]*[A-Z]", text)) <= known, _name(page)


def test_every_make_target_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page, text in TEXTS.items():
        named = set(re.findall(r"(?:`|\$ (?:[A-Z_]+=\S+ )*)make ([a-z0-9-]+)", text))
        assert named <= targets, _name(page)


def test_the_changelog_has_every_migration_and_names_the_newest() -> None:
    changelog = TEXTS[ROOT / "CHANGELOG.md"]
    revisions = sorted(path.name[:4] for path in (ROOT / "migrations" / "versions").glob("[0-9]*.py"))
    assert re.findall(r"^\| ([0-9]{4}) \|", changelog, re.MULTILINE) == revisions
    assert re.findall(r"newest revision of its database schema is ([0-9]{4})", changelog) == [revisions[-1]]


def test_the_page_on_security_lists_every_address_that_needs_no_key() -> None:
    (row,) = re.findall(r"^\| anybody who reaches the port \|(.*?)\|", TEXTS[SECURITY], re.MULTILINE)
    assert sorted(re.findall(r"`(/[^`]*)`", row)) == sorted({route.path for route in PUBLIC_ROUTES})


def test_every_dependency_has_a_row_in_the_table_of_libraries() -> None:
    """Those of the server and the engine, not those of the tests."""
    table = TEXTS[DEVELOPMENT].partition("\n## Library or own code\n")[2].lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [*project["optional-dependencies"]["embedded"], *project["optional-dependencies"]["tracing"]]
    names = [re.match(r"[\w-]+", one)[0] for one in (*project["dependencies"], *extras)]  # type: ignore[index]
    assert [name for name in names if not re.search(rf"(?<![\w-]){name}(?![\w-])", table)] == []


GROUPS = ("keys", "db", "prompts", "tenants", "prices", "webhooks")
"""Commands that only have subcommands."""


def test_every_command_that_a_document_shows_is_one() -> None:
    shown = [(page, line) for page, line in _shell_lines() if re.match(r"(?:[A-Z_]+=\S+ )*holdfast ", line)]
    shown += [
        (_name(page), line)
        for page, text in TEXTS.items()
        for line in re.findall(r"`(holdfast [a-z][^`…]*)`", text)
    ]
    assert len(shown) > 20
    parser = cli._parser()
    for page, line in shown:
        words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)][1:]
        if words in ([name] for name in GROUPS) or "--help" in words:
            continue  # the name of a group of commands
        try:
            _, rest = parser.parse_known_args(words)
        except SystemExit:
            pytest.fail(f"{page}: {line}")
        assert not rest or words[0] == "psql", f"{page}: {line}"


def test_the_table_of_tool_call_formats_has_every_name() -> None:
    table = TEXTS[ROOT / "docs" / "models.md"].partition("## Tool-call formats")[2].partition("\n### ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == TOOL_CALL_FORMATS.keys()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_path_that_a_document_names_exists(page: Path) -> None:
    folders = r"(?:server|engine|runner|migrations|tests|bench|demo|docs|\.ci)"
    named = re.findall(rf"`({folders}/[\w./-]*)`", _FENCED.sub("", TEXTS[page]))
    assert [path for path in named if not (ROOT / path).exists()] == []
