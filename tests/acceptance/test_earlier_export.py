"""An export of an earlier schema (revision 0024) is imported, and everything is served as it was before.

`support/exports` has the export of a small database, and what its server answered to these addresses.
"""

import gzip
import json
from pathlib import Path

import httpx

from tests.fix_server import SCRIPTED, StartServerOn
from tests.support.invariants import check
from tests.support.server_process import environment, run_command, run_module

EXPORTS = Path(__file__).parents[1] / "support" / "exports"
LISTED_PROMPTS = "holdfast prompts list"


def unpacked(name: str) -> str:
    return gzip.decompress((EXPORTS / name).read_bytes()).decode()


def test_what_an_earlier_schema_exported_is_imported_and_served_to_the_byte(
    database_url: str, start_server_on: StartServerOn
) -> None:
    exported, answers = unpacked("export.jsonl.gz"), json.loads(unpacked("answers.json.gz"))
    imported = run_module(["server", "import"], environment(database_url, {}), exported)
    assert imported.returncode == 0, imported.stderr
    _, prompts = answers.pop(LISTED_PROMPTS)
    assert run_command("prompts", "list", database_url=database_url).stdout == prompts
    server = start_server_on(database_url, **SCRIPTED)
    for address, (status, body) in answers.items():
        answer = httpx.get(f"{server.api}{address}", timeout=60)
        assert (answer.status_code, answer.text) == (status, body), address
    again = run_command("export", "--tenant", "default", database_url=database_url).stdout.splitlines()
    assert again[1:] == exported.splitlines()[1:]
    check(database_url)
