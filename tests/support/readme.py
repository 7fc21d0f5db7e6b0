"""The parts of the README that are made from the code: the table of settings and the tree of files.

`python -m tests.support.readme` writes them; a test fails while they differ.
"""

import ast
import subprocess
from pathlib import Path

from server.configuration.settings import settings

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
FOLDERS = ("server", "engine", "runner", "migrations", "demo", "bench")
"""Shown file by file; of `tests` the folders are enough."""


def expected() -> str:
    """The README with both parts as they should be."""
    text = README.read_text(encoding="utf-8")
    text = _between(text, "settings", settings_table())
    return _between(text, "tree", f"```\n{tree()}```\n")


def _between(text: str, name: str, content: str) -> str:
    start = text.index(f"<!-- {name}: ")
    head_end = text.index("-->\n", start) + len("-->\n")
    return text[:head_end] + content + text[text.index(f"<!-- end of {name} -->") :]


def settings_table() -> str:
    """Markdown: flag, variable, default, meaning."""
    lines = ["| flag | variable | default | meaning |", "| --- | --- | --- | --- |"]
    for setting in settings():
        default = "" if setting.default is None else f"`{setting.default}`"
        choices = f" ({', '.join(f'`{choice}`' for choice in setting.choices)})" if setting.choices else ""
        lines.append(f"| `{setting.flag}` | `{setting.variable}` | {default} | {setting.help}{choices} |")
    return "\n".join(lines) + "\n"


def tree() -> str:
    """Every source file with the first sentence of its docstring, and the folders of the tests."""
    lines = []
    for folder in FOLDERS:
        lines += _folder_lines(folder, _tracked(folder))
    lines.append("tests/")
    tests = {Path(path).parts[1] for path in _tracked("tests") if len(Path(path).parts) > 2}
    lines += [f"    {name + '/':26}{TESTS[name]}" for name in sorted(tests)]
    return "\n".join(lines) + "\n"


TESTS = {
    "acceptance": "the real process over HTTP, with the official client",
    "clients": "other people's clients, as they are; `make clients` installs them, without they are skipped",
    "contract": "one suite over every engine",
    "faults": "kills and other accidents, repeated",
    "gpu": "what only an accelerator can show",
    "integration": "the store and the recorder on a real Postgres",
    "migration": "the schema, up, down and at once",
    "peers": "vLLM's and OGX's own tests, fetched and unchanged; `make peers-tests` runs them",
    "support": "what tests share",
    "unit": "the pure core, file by file",
}


def _folder_lines(folder: str, paths: list[str]) -> list[str]:
    lines = [f"{folder}/"]
    seen = set()
    for path in paths:
        parts = Path(path).parts
        if len(parts) > 2 and parts[1] not in seen:
            seen.add(parts[1])
            init = ROOT / folder / parts[1] / "__init__.py"
            lines.append(_line(1, parts[1] + "/", _purpose(init)).rstrip())
        if parts[-1] != "__init__.py" and parts[-1] != "README.md":
            lines.append(_line(len(parts) - 1, parts[-1], _purpose(ROOT / path)).rstrip())
    return lines


def _line(depth: int, name: str, purpose: str) -> str:
    return f"{'    ' * depth + name:30}  {purpose}"


def _purpose(path: Path) -> str:
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8") if path.suffix in (".py", ".sql", ".mako", ".jinja") else ""
    if path.suffix == ".sql":
        return text.splitlines()[0].removeprefix("--").strip().rstrip(".")
    if path.suffix != ".py":
        return OTHER.get(path.name, "")
    docstring = ast.get_docstring(ast.parse(text)) or ""
    return docstring.splitlines()[0].rstrip(".") if docstring else ""


OTHER = {
    "script.py.mako": "what a new migration looks like",
    "chat_template.jinja": "how a conversation is written for the demo model",
    "config.json": "the demo model's architecture",
    "generation_config.json": "how it generates unless told otherwise",
    "model.safetensors": "its weights",
    "tokenizer.json": "its vocabulary",
    "tokenizer_config.json": "its special tokens",
}


def _tracked(folder: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted(path for path in listed.stdout.splitlines() if (ROOT / path).is_file())


if __name__ == "__main__":
    README.write_text(expected(), encoding="utf-8")
