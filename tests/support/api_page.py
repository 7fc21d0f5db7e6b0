"""The tables of `docs/api.md`, made from the routes and from the rows by which parameters are checked.

`python -m tests.support.documents` writes them; a test fails while they differ.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from server.http.routes import PUBLIC_ROUTES, ROUTES
from server.protocol.parameter_support import TABLES, Endpoint, ParameterRow
from tests.support.anchor_parameters import OPENAI, VLLM
from tests.support.documents import between

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
VERDICTS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("sdk_verdicts.toml").read_text(encoding="utf-8")
)
"""What is done with every field of the OpenAI SDK's types."""
TITLES: dict[Endpoint, str] = {
    "responses": "POST /v1/responses",
    "chat": "POST /v1/chat/completions",
    "completions": "POST /v1/completions",
}


def page() -> str:
    """The page as it should be."""
    text = between(PAGE.read_text(encoding="utf-8"), "addresses", _addresses())
    text = between(text, "parameters", "".join(_section(endpoint) for endpoint in TITLES) + "\n")
    return between(text, "types", "".join(_types()) + "\n")


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
    return "\n".join(lines) + "\n"


def _types() -> Iterator[str]:
    """What is done with every type and field of the SDK that no table of parameters has."""
    for title, prefix in (("Input items", "item "), ("Content parts", "part "), ("Tools", "tool ")):
        rows = {name.removeprefix(prefix): rows for name, rows in VERDICTS.items() if name.startswith(prefix)}
        yield f"\n### {title}\n\n| type | remarks |\n| --- | --- |\n"
        yield from (f"| `{name}` | {_exceptions(fields)} |\n" for name, fields in sorted(rows.items()))
    for title, name in (
        ("Tool choices", "tool_choice"),
        ("Values of `include`", "include"),
        ("Events", "events"),
    ):
        yield f"\n### {title}\n\nWorks: {_listed(VERDICTS[name]['works'])}. {_exceptions(VERDICTS[name])}\n"
    yield "\n### Fields within parameters\n\n| address | remarks |\n| --- | --- |\n"
    for name, fields in sorted(VERDICTS.items()):
        if name.startswith("parameters ") and (remarks := _exceptions(fields, within=True)):
            yield f"| `{name.removeprefix('parameters ')}` | {remarks} |\n"


def _exceptions(fields: Mapping[str, Any], *, within: bool = False) -> str:
    """The fields that are ignored or refused, by the reason; with `within` those of objects alone."""
    if "reason" in fields:
        return str(fields["reason"])
    sentences: list[str] = []
    for verdict in ("ignored", "refused"):
        reasons: dict[str, list[str]] = {}
        listed = fields.get(verdict, {})
        for name, reason in listed.items():
            shown = "." in name if within else name.rpartition(".")[0] not in listed
            if shown and name != "id":
                reasons.setdefault(reason, []).append(name)
        sentences += [f"{verdict.title()}: {_listed(names)}. {reason}" for reason, names in reasons.items()]
    return " ".join(sentences) or ("" if within else "Works.")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _documents(endpoint: Endpoint, name: str) -> str:
    known = {"OpenAI": OPENAI, "vLLM": VLLM}
    return ", ".join(who for who, lists in known.items() if name in lists[endpoint]) or "others"


def _remarks(row: ParameterRow) -> str:
    if not row.neutral:
        return row.reason
    values = " or ".join(f"`{json.dumps(value)}`" for value in row.neutral)
    return f"{row.reason} {values} is accepted."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
