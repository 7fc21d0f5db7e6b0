"""The tables of `docs/api.md`, made from the routes and from the rows by which parameters are checked.

`python -m tests.support.documents` writes them; a test fails while they differ.
"""

import json
from pathlib import Path

from server.http.routes import PUBLIC_ROUTES, ROUTES
from server.protocol.parameter_table import (
    MISPLACED,
    TABLES,
    Endpoint,
    Row,
)
from tests.support.anchor_parameters import OPENAI, VLLM
from tests.support.documents import between

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
TITLES: dict[Endpoint, str] = {
    "responses": "POST /v1/responses",
    "chat": "POST /v1/chat/completions",
    "completions": "POST /v1/completions",
}


def page() -> str:
    """The page as it should be."""
    text = between(PAGE.read_text(encoding="utf-8"), "addresses", _addresses())
    return between(text, "parameters", "".join(_section(endpoint) for endpoint in TITLES) + "\n")


def _addresses() -> str:
    lines = ["| address | does |", "| --- | --- |"]
    lines += [f"| `{one.route}` | {one.says} |" for one in ROUTES]
    lines += [f"| `{one.route}` | {one.says} |" for one in PUBLIC_ROUTES]
    return "\n".join(lines) + "\n"


def _section(endpoint: Endpoint) -> str:
    lines = [
        f"\n### {TITLES[endpoint]}\n",
        "| parameter | of | verdict | remarks |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{name}` | {_documents(endpoint, name)} | {row.verdict} | {_remarks(row)} |"
        for name, row in sorted(TABLES[endpoint].items())
    ]
    lines += [
        "\nNames of other APIs and endpoints, which are refused:\n",
        "| name | remarks |",
        "| --- | --- |",
    ]
    lines += [f"| `{name}` | {_remarks(row)} |" for name, row in sorted(MISPLACED[endpoint].items())]
    return "\n".join(lines) + "\n"


def _documents(endpoint: Endpoint, name: str) -> str:
    known = {"OpenAI": OPENAI, "vLLM": VLLM}
    return ", ".join(who for who, lists in known.items() if name in lists[endpoint]) or "others"


def _remarks(row: Row) -> str:
    if not row.neutral:
        return row.reason
    values = " or ".join(f"`{json.dumps(value)}`" for value in row.neutral)
    return f"{row.reason} {values} is accepted."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
