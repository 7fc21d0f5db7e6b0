"""The parts of the documents that are made from the code, from the tables of settings to the tree of files.

`python -m tests.support.documents` writes them, and docs/api.md with them; tests fail while they differ.
"""

import ast
import re
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from bench.__main__ import BENCHES
from server.configuration.settings import Setting, settings
from server.store.administration.audit_trail import ACTIONS
from tests.support.data_dictionary import dictionary

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
DEVELOPMENT = ROOT / "docs" / "development.md"
LOGS = ROOT / "docs" / "tracing-and-logs.md"
DICTIONARY = ROOT / "docs" / "data-dictionary.md"
LIMITS = ROOT / "docs" / "limits.md"
SQL_PAGE = ROOT / "docs" / "sql.md"
QUESTIONS = ROOT / "server" / "console" / "questions.sql"
FOLDERS = ("server", "engine", "tool_servers", "migrations", "demo", "bench")
"""Shown file by file; of `tests` the folders are enough."""


def pages() -> Iterator[Path]:
    """Every hand-written document of the project, the README first."""
    yield README
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        yield ROOT / name
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield ROOT / "demo" / "README.md"


def expected(page: Path) -> str:
    """One of the `GENERATED` pages, as it should be."""
    return GENERATED[page]()


def between(text: str, name: str, content: str) -> str:
    """The page with `content` between the comments `<!-- name: ... -->` and `<!-- end of name -->`."""
    start = text.index(f"<!-- {name}: ")
    head_end = text.index("-->\n", start) + len("-->\n")
    return text[:head_end] + content + text[text.index(f"<!-- end of {name} -->") :]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def sql_lines() -> list[tuple[str, str]]:
    """The queries of docs/sql.md, each with the heading above it; a later one of a heading has a number."""
    lines: list[tuple[str, str]] = []
    title = ""
    for line in _text(SQL_PAGE).splitlines():
        if line.startswith("##"):
            title, number = line.lstrip("# "), 0
        elif line.startswith("select "):
            number += 1
            lines.append((title if number == 1 else f"{title} ({number})", line.rstrip(";")))
    return lines


def questions() -> str:
    """The lines of docs/sql.md as the console ships them: a comment with the title before each query."""
    head = "-- the questions of docs/sql.md: a title, and a line with the query\n"
    return head + "".join(f"\n-- {title}\n{query}\n" for title, query in sql_lines())


def settings_tables() -> str:
    """Markdown: flag, variable, default and meaning of every setting, in a table for each group."""
    lines: list[str] = []
    for group, known in groupby(settings(), key=lambda setting: setting.group):
        lines += ["", f"### {group}", ""]
        lines += ["| flag | variable | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [_row(setting) for setting in known]
    return "\n".join(lines) + "\n\n"


def benches() -> str:
    """The names of all measurements, a paragraph between blank lines."""
    return "\n" + textwrap.fill(", ".join(f"`{name}`" for name in BENCHES), 118) + "\n\n"


def actions_table() -> str:
    """Markdown: every action of the audit trail, and what it says."""
    lines = ["", "| action | says |", "| --- | --- |"]
    lines += [f"| `{action}` | {meaning} |" for action, meaning in ACTIONS.items()]
    return "\n".join(lines) + "\n\n"


def limits() -> str:
    """docs/limits.md with the tables of its parts."""
    from tests.support import limits_page

    text = _text(LIMITS)
    for name in limits_page.PARTS:
        text = between(text, name, limits_page.part(name))
    return text


def _row(setting: Setting) -> str:
    default = "" if setting.default is None else f"`{setting.default}`"
    choices = f" ({', '.join(f'`{choice}`' for choice in setting.choices)})" if setting.choices else ""
    meaning = f"{setting.help}{choices}".replace("|", "\\|")
    return f"| `{setting.flag}` | `{setting.variable}` | {default} | {meaning} |"


def tree() -> str:
    """Every source file with the first sentence of its docstring, and the folders of the tests."""
    lines = []
    for folder in FOLDERS:
        lines += _folder_lines(folder)
    lines.append("tests/")
    tests = {Path(path).parts[1] for path in _tracked("tests") if len(Path(path).parts) > 2}
    lines += [f"    {name + '/':26}{TESTS[name]}" for name in sorted(tests)]
    return "\n".join(lines) + "\n"


TESTS = {
    "acceptance": "the real process over HTTP, with the official client",
    "clients": "other people's clients, unchanged; `make clients` installs them, without them skipped",
    "contract": "one suite over every engine",
    "faults": "kills and other accidents, repeated",
    "gpu": "what only an accelerator can show",
    "integration": "the store and the recorder on a real Postgres",
    "migration": "the schema: up, down and at once",
    "peers": "vLLM's and OGX's own tests, fetched and unchanged; `make peers-tests` runs them",
    "real": "a real small model, by `make test-real`",
    "support": "code that tests share",
    "unit": "the pure core, file by file",
}

_COMMENTS = {
    ".sql": re.compile(r"-- *(.*)"),
    ".js": re.compile(r"// *(.*)"),
    ".css": re.compile(r"/\* *(.*?) *\*/"),
    ".html": re.compile(r"\{# *(.*?) *#\}"),
    ".svg": re.compile(r"<!-- *(.*?) *-->"),
}
"""The comment with which files begin that say what they are for."""

OTHER = {
    "server/console/static": "style sheets and scripts, without a build step",
    "server/console/static/vendor": "htmx and uPlot as npm has them, unchanged",
    "server/console/templates": "Jinja2 templates of the pages",
    "server/console/templates/administration": "tenants, keys, webhook endpoints, prices, the audit trail",
    "server/console/templates/sql": "the SQL page",
    "htmx-2.0.11.min.js": "parts of pages are asked for and put in place",
    "htmx.LICENSE": "0BSD",
    "uplot-1.6.32.min.js": "charts",
    "uplot-1.6.32.min.css": "their style",
    "uplot.LICENSE": "MIT",
    "migrations": "the schema, step by step, by Alembic",
    "migrations/tables": "tables, their indexes, comments and first partitions",
    "migrations/functions": "functions of the schema, in SQL",
    "migrations/versions": "one file a step of the schema",
    "migrations/views": "the views that migrations create",
    "migrations/views/admin": "the schema `admin`: views for people",
    "demo/holdfast-demo": "the demo model, an ordinary Hugging Face folder",
    "demo/holdfast-vision": "the demo's vision-language model, the same",
    "script.py.mako": "the template of a new migration",
    "chat_template.jinja": "how a conversation is written for the demo model",
    "config.json": "the demo model's architecture",
    "generation_config.json": "its default sampling parameters",
    "model.safetensors": "its weights",
    "tokenizer.json": "its vocabulary",
    "tokenizer_config.json": "its special tokens",
    "preprocessor_config.json": "how a picture becomes numbers for it",
    "processor_config.json": "how many tokens a picture takes",
}
"""Purposes of files and folders that have no docstring."""


def _folder_lines(folder: str) -> list[str]:
    lines: list[str] = []
    seen: set[Path] = set()
    for name in _tracked(folder):
        path = Path(name)
        for parent in reversed(path.parents[:-1]):
            if parent not in seen:
                seen.add(parent)
                purpose = _purpose(ROOT / parent / "__init__.py") or OTHER.get(str(parent), "")
                lines.append(_line(len(parent.parts) - 1, parent.name + "/", purpose))
        if path.name not in ("__init__.py", "README.md"):
            lines.append(_line(len(path.parts) - 1, path.name, _purpose(ROOT / path)))
    return lines


def _line(depth: int, name: str, purpose: str) -> str:
    return f"{'    ' * depth + name:34}  {purpose}".rstrip()


def _purpose(path: Path) -> str:
    if not path.is_file():
        return ""
    if (comment := _COMMENTS.get(path.suffix)) is not None:
        found = comment.match(_text(path))
        return found[1].rstrip(".") if found else OTHER.get(path.name, "")
    if path.suffix != ".py":
        return OTHER.get(path.name, "")
    docstring = ast.get_docstring(ast.parse(_text(path))) or ""
    return docstring.splitlines()[0].rstrip(".") if docstring else ""


def _tracked(folder: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted(path for path in listed.stdout.splitlines() if (ROOT / path).is_file())


GENERATED: dict[Path, Callable[[], str]] = {
    CONFIGURATION: lambda: between(_text(CONFIGURATION), "settings", settings_tables()),
    ARCHITECTURE: lambda: between(_text(ARCHITECTURE), "tree", f"```\n{tree()}```\n"),
    DEVELOPMENT: lambda: between(_text(DEVELOPMENT), "benches", benches()),
    LOGS: lambda: between(_text(LOGS), "actions", actions_table()),
    DICTIONARY: lambda: between(_text(DICTIONARY), "dictionary", dictionary()),
    LIMITS: limits,
    QUESTIONS: questions,
}
"""The pages with generated parts, and how each is made."""


def write() -> None:
    """Writes every page of which a part is generated."""
    from tests.support import api_page

    for path in GENERATED:
        path.write_text(expected(path), encoding="utf-8")
    api_page.PAGE.write_text(api_page.page(), encoding="utf-8")


if __name__ == "__main__":
    write()
