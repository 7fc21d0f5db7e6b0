"""Requests whose text costs a server as much as text can, each within the limit of a body.

Every one of them is to be refused, or answered, without anybody else noticing.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BODY = 10 * 2**20 - 4096
"""Bytes, a little below the limit of a request's body."""


@dataclass(frozen=True)
class Attack:
    """One request."""

    path: str
    body: Callable[[str], bytes]
    """For a model of that name."""
    repeats: int = 1
    """How often it is sent at the same time."""


def _post(path: str, repeats: int = 1, **fields: Any) -> Attack:
    return Attack(path, lambda model: json.dumps({"model": model, **fields}).encode(), repeats)


def _text(size: int) -> str:
    return "a b" * (size // 3)


def _long(path: str, field: str, size: int) -> Attack:
    return Attack(path, lambda model: json.dumps({"model": model, field: _text(size)}).encode())


def _lark(definition: str, path: str = "/v1/responses") -> Attack:
    if path != "/v1/responses":
        return _post(
            path, messages=[{"role": "user", "content": "Hi"}], tools=[_custom(definition, chat=True)]
        )
    return _post(path, input="Hi", tools=[_custom(definition)], max_output_tokens=1)


def _custom(definition: str, name: str = "t", *, chat: bool = False) -> dict[str, Any]:
    lark = {"syntax": "lark", "definition": definition}
    if chat:
        return {"type": "custom", "custom": {"name": name, "format": {"type": "grammar", "grammar": lark}}}
    return {"type": "custom", "name": name, "format": {"type": "grammar", **lark}}


def _function(schema: dict[str, Any], name: str = "f") -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return {"type": "function", "name": name, "parameters": parameters, "strict": True}


def _tool(schema: dict[str, Any]) -> Attack:
    return _post("/v1/responses", input="Hi", tools=[_function(schema)], max_output_tokens=1)


def _described(description: str) -> dict[str, Any]:
    return {"type": "function", "name": "f", "description": description, "parameters": None}


def _many(count: int, size: int) -> Attack:
    tools = [{**_described("d " * (size // 2)), "name": f"f{n}"} for n in range(count)]
    return _post("/v1/responses", input="Hi", tools=tools, max_output_tokens=1)


def _schema(count: int) -> dict[str, Any]:
    named = {f"p{n}": {"type": "string"} for n in range(count)}
    return {"type": "object", "properties": named, "required": list(named), "additionalProperties": False}


def _turns(count: int, size: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": _text(size)} for n in range(count)]


def _raw(path: str, text: Callable[[str], str]) -> Attack:
    return Attack(path, lambda model: text(model).encode())


MEGABYTES = (1, 4, 10)
ATTACKS: dict[str, Attack] = {
    "exponential grammar": _post(
        "/v1/responses", input="Hi", structured_outputs={"grammar": "start: /" + "[a]" * 6000}
    ),
    "exponential grammar of a tool": _lark("start: /" + "[a]" * 20_000, "/v1/chat/completions"),
    "quotes without an end": _lark('start: "' + '\\"' * 30_000),
    "long name in a grammar": _lark("start: " + "A" * 60_000 + "a"),
    "long names in many grammars": _post(
        "/v1/responses",
        input="Hi",
        tools=[_custom("start: " + "A" * 60_000 + "a", f"t{n}") for n in range(128)],
    ),
    "counted repetition": _post("/v1/responses", input="Hi", structured_outputs={"regex": "{" + "1" * 10**6}),
    "brackets in a pattern": _tool({"type": "string", "pattern": "[" * 10**6}),
    "endless length": _tool({"type": "string", "maxLength": 10**15}),
    "negative length": _tool({"type": "string", "minLength": -(10**15)}),
    "runs of 1000": _post("/v1/responses", input="Hi", tools=[_described(("a" * 1000 + " ") * 10_000)]),
    "long spaces": _post("/v1/responses", input="Hi", tools=[_described((" " * 1000 + "a") * 10_000)]),
    "format of 5040 properties": _post(
        "/v1/responses",
        repeats=4,
        input="Hi",
        text={"format": {"type": "json_schema", "name": "n", "schema": _schema(5040), "strict": True}},
    ),
    "format of 400000 properties": _post(
        "/v1/responses",
        input="Hi",
        text={"format": {"type": "json_schema", "name": "n", "schema": _schema(200_000), "strict": True}},
    ),
    "40000 prompts": _post("/v1/completions", prompt=["a b"] * 40_000, max_tokens=1),
    "500000 prompts of one token": _post("/v1/completions", prompt=[[1]] * 500_000, max_tokens=1),
    "a long prompt of tokens": _post("/v1/completions", prompt=[1] * 3 * 10**6, max_tokens=1),
    "2500 tools": _many(2500, 100),
    "128 tools of 64 kB": _many(128, 65_536),
    "500000 unknown fields": _raw(
        "/v1/responses",
        lambda model: (
            "{"
            + "".join(f'"u{n}":{n},' for n in range(500_000))
            + f'"model":"{model}","input":"Hi","max_output_tokens":1}}'
        ),
    ),
    "5 million brackets": _raw(
        "/v1/responses", lambda model: f'{{"model":"{model}","input":' + "[" * 5_000_000
    ),
    "deep schema": _raw(
        "/v1/responses",
        lambda model: (
            f'{{"model":"{model}","input":"Hi","tools":[{{"type":"function","name":"f","parameters":'
            + '{"a":' * 900
            + "{}"
            + "}" * 900
            + "}]}"
        ),
    ),
    "4000 items": _post("/v1/responses", input=_turns(4000, 2400), max_output_tokens=1),
    "truncated conversation": _post(
        "/v1/responses", input=_turns(4001, 2400), truncation="auto", max_output_tokens=1
    ),
    "compacted conversation": _post("/v1/responses/compact", input=_turns(1001, 9000)),
    "compacted message": _post("/v1/responses/compact", input=_text(BODY)),
    "many tokens to spell": _post("/detokenize", tokens=[5] * 3_000_000),
    **{
        f"{megabytes} MB at {path}": _long(path, field, min(megabytes * 2**20, BODY - 2000))
        for megabytes in MEGABYTES
        for path, field in (
            ("/tokenize", "prompt"),
            ("/v1/completions", "prompt"),
            ("/v1/responses", "input"),
            ("/v1/responses/input_tokens", "input"),
        )
    },
    "10 MB without a break": _post("/tokenize", prompt="a" * (BODY - 2000)),
    "10 MB of spaces": _post("/v1/responses", input=" " * (BODY - 2000)),
    "10 MB of emoji": Attack(
        "/v1/responses",
        lambda model: json.dumps(
            {"model": model, "input": "🙂" * (BODY // 4 - 1000)}, ensure_ascii=False
        ).encode(),
    ),
    "10 MB twelve times": _post("/tokenize", repeats=12, prompt=_text(BODY - 2000)),
}
