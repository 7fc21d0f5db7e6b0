"""The `holdfast` command before any command runs: help texts, their imports, and mistyped flags."""

import subprocess
import sys

import pytest

from server.cli.command import print_columns
from server.cli.entry_point import main
from tests.support.documents import ROOT

HEAVY = {"torch", "transformers", "sqlalchemy", "psycopg", "alembic", "starlette", "mcp", "jinja2"}
LOADED_BY = (
    "import sys\n"
    "from server.cli.entry_point import main\n"
    "try:\n"
    "    main(sys.argv[1:])\n"
    "except SystemExit:\n"
    f"    sys.stderr.write(' '.join(sorted({HEAVY!r} & set(sys.modules))))\n"
)
COMMANDS = (
    *(
        "serve",
        "doctor",
        "models",
        "keys",
        "tenants",
        "prices",
        "prompts",
        "db",
        "webhooks",
        "audit",
        "trail",
    ),
    *("purge", "erase", "dump", "restore", "export", "import", "storage", "psql"),
)


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["serve", "--help"]], ids=" ".join)
def test_help_and_version_load_no_large_library(words: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOADED_BY, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout != ""
    assert ran.stderr == ""


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_help_of_the_whole_lists_each_command_with_its_own_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [line.split(maxsplit=1) for line in help_of(capsys).splitlines() if line.startswith("    ")]
    listed = {words[0]: words[1] for words in lines if words[0] in COMMANDS}
    assert listed.keys() == set(COMMANDS)
    for command in COMMANDS:
        own = help_of(capsys, command).lower()
        is_group = command in ("keys", "tenants", "prices", "prompts", "db", "webhooks")
        assert is_group or listed[command][:20].lower() in own


def test_help_of_serve_is_in_groups_and_names_kinds_of_values(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "serve")
    assert " X " not in text
    assert " TEXT " not in text
    for part in (
        "--port N",
        "--device auto|cpu|cuda",
        "--model MODEL",
        "--chat-template PATH",
        "--allowed-hosts HOSTS",
        "--database-url URL",
        "--lease-seconds SECONDS",
    ):
        assert part in text
    assert "\nDatabase:\n" in text
    assert "\nEngine of this process:\n" in text
    assert len(text.splitlines()) < 300


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["serve", "--prot", "80"], "--port"),
        (["serve", "--databaseurl=postgresql://"], "--database-url"),
        (["keys", "create", "--tennant", "acme"], "--tenant"),
    ],
)
def test_mistyped_flag_gets_the_nearest_one(
    capsys: pytest.CaptureFixture[str], words: list[str], meant: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_columns_have_names_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_columns("tenant", "bytes")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_columns("tenant", "bytes")
    assert capsys.readouterr().out == "TENANT\tBYTES\n"
