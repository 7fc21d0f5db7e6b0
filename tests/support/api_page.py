"""`docs/api.md`, made from the rows by which the server takes and refuses parameters.

`python -m tests.support.api_page` writes it; a test fails while it differs.
"""

import json
from pathlib import Path

from server.protocol.parameter_rows import SLIPS, TABLES, Endpoint, Row
from tests.support.anchor_parameters import OPENAI, VLLM

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
TITLES: dict[Endpoint, str] = {
    "responses": "POST /v1/responses",
    "chat": "POST /v1/chat/completions",
    "completions": "POST /v1/completions",
}

HEAD = """# Parameters

For users: what the server does with every parameter of OpenAI's documents and of vLLM's request classes, one
table for each endpoint. This page is made from the rows that the server itself reads.

- **works**: it does what its document says.
- **refused**: it would change the answer and is not built: 400 `unsupported_parameter`, with the name as
  `param`. Values that ask for nothing are accepted.
- **ignored**: it cannot change the answer.

Null is the default everywhere. A name of another API or of another endpoint is refused with the right one,
and so is a name that is all but one of the names here (`temprature`, `maxTokens`), unless the request has
that one, too: 400 `unknown_parameter`. Any other unknown name is ignored, because clients and gateways send
fields of their own. Messages over a WebSocket, `/v1/responses/input_tokens` and `/v1/responses/compact` take
the names of `/v1/responses`. What bounds the values is in [limits](limits.md).
"""


def page() -> str:
    """The page as it should be."""
    return HEAD + "".join(_section(endpoint) for endpoint in TITLES)


def _section(endpoint: Endpoint) -> str:
    lines = [
        f"\n## {TITLES[endpoint]}\n",
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
    lines += [f"| `{name}` | {_remarks(row)} |" for name, row in sorted(SLIPS[endpoint].items())]
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
