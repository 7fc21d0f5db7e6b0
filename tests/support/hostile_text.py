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


def _field(name: str, json_text: str, path: str = "/v1/responses", **fields: Any) -> Attack:
    """A request with a field that is written as no encoder would write it."""
    return _raw(
        path,
        lambda model: json.dumps({"model": model, **fields})[:-1] + f',"{name}":{json_text}}}',
    )


def _options(numbers: str, count: int) -> Attack:
    """So many numbers in a field that may have any."""
    listed = ",".join([numbers] * count)
    return _field("chat_template_kwargs", f'{{"a":[{listed}]}}', input="Hi", max_output_tokens=1)


def _fields(count: int) -> str:
    return "{" + ",".join(f'"k{n}":{n}' for n in range(count)) + "}"


def _called(arguments: str, output: str = "x", calls: int = 1, repeats: int = 1) -> Attack:
    """Calls in the history, of which a template wants the arguments parsed."""
    made = [
        item
        for n in range(calls)
        for item in (
            {"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": arguments},
            {"type": "function_call_output", "call_id": f"c{n}", "output": output},
        )
    ]
    user = {"role": "user", "content": "Hi"}
    return _post("/v1/responses", repeats, input=[user, *made], max_output_tokens=1)


MEGABYTES = (1, 4, 10)
MOST = 65_000
"""About as many strings, and lists and objects, as a body may have."""


def _structural(elements: list[dict[str, str]]) -> Attack:
    """A grammar composed of these parts in a row."""
    tag = {"format": {"type": "sequence", "elements": elements}}
    return _post(
        "/v1/responses", input="Hi", max_output_tokens=64, structured_outputs={"structural_tag": tag}
    )


ALLOWED: dict[str, Attack] = {
    "a million of 1e308": _options("1e308", 999_000),
    "as many of 1e308 as 64 kB have": _options("1e308", 10_800),
    "2000 of 1e308": _options("1e308", 2000),
    "long fractions": _options("1.234567890123456789012345e-310", 310_000),
    "whole numbers of 4200 digits": _options("1" * 4200, 2400),
    "a number of 10 million digits": _options("1" * (BODY - 500), 1),
    "a million fractions": _options("0.1234567", 999_000),
    "130000 numbers": _options("1234567", 130_000),
    "65000 lists": _options("[]", MOST),
    "a million numbers of a tool": _tool({"enum": [1234567] * 999_000}),
    "a million numbers of a grammar": _post(
        "/v1/responses", input="Hi", structured_outputs={"json": {"enum": [1234567] * 999_000}}
    ),
    "130000 numbers of a grammar": _post(
        "/v1/responses", input="Hi", structured_outputs={"json": {"enum": [1234567] * 130_000}}
    ),
    "65000 texts of a format": _post(
        "/v1/responses",
        input="Hi",
        text={
            "format": {"type": "json_schema", "name": "n", "schema": {"enum": [f"c{n}" for n in range(MOST)]}}
        },
    ),
    "65000 unknown fields": _field("unknown", _fields(MOST), input="Hi", max_output_tokens=1),
    "NUL among 65000 fields": _field("unknown", _fields(MOST)[:-1] + ',"k":"\\u0000"}', input="Hi"),
    "10 MB of escaped quotes": _field("input", '"' + '\\"' * (BODY // 2 - 500) + '"'),
    "10 MB of backslashes": _field("input", '"' + '\\\\\\"' * (BODY // 4 - 500) + '"'),
    "10 MB of escaped emoji": _field("input", '"' + "\\ud83d\\ude42" * (BODY // 12 - 500) + '"'),
    "65000 prompts of one token": _post("/v1/completions", prompt=[[1]] * MOST, max_tokens=1),
    "999000 tokens of a prompt": _post("/v1/completions", prompt=[1] * 999_000, max_tokens=1),
    "999000 tokens to spell": _post("/detokenize", tokens=[5] * 999_000),
    "arguments of 500000 fields": _called(_fields(500_000)),
    "arguments of 500000 fields twelve times": _called(_fields(500_000), repeats=12),
    "arguments of 3 million lists": _called('{"a":[' + "[]," * 3 * 10**6 + "1]}"),
    "arguments of a text": _called('{"a":"' + _text(BODY - 2000) + '"}'),
    "arguments that do not end": _called("[" * (BODY - 2000)),
    "65000 fields in arguments of 8 calls": _called(_fields(60_000), calls=8),
    "10 MB of output": _called("{}", output=_text(BODY - 2000)),
    "10 MB of user": _post("/v1/responses", input="Hi", user=_text(BODY - 2000), max_output_tokens=1),
    "a conversation of 10 MB": _post(
        "/v1/conversations", items=[{"role": "user", "content": _text(BODY - 2000)}]
    ),
    "a million fractions twelve times": _post(
        "/v1/responses", 12, input="Hi", chat_template_kwargs={"a": [0.1234567] * 900_000}
    ),
}
"""What costs most within the bounds on values in a body, and what is just beyond them."""
ATTACKS: dict[str, Attack] = {
    **ALLOWED,
    "exponential grammar": _post(
        "/v1/responses", input="Hi", structured_outputs={"grammar": "start: /" + "[a]" * 6000}
    ),
    "exponential grammar of a tool": _lark("start: /" + "[a]" * 20_000, "/v1/chat/completions"),
    "quotes without an end": _lark('start: "' + '\\"' * 30_000),
    "any text 63 times": _structural(
        [{"type": "any_text"}, {"type": "const_string", "value": "a" * 500}] * 63
    ),
    "a form of 60000 parts": _structural([{"type": "const_string", "value": "a"}] * 60_000),
    "120 patterns in a form": _structural([{"type": "regex", "pattern": "[a-z]{1,100}" * 40}] * 120),
    "a beam search of 10 over a long prompt": _post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "word " * 1500}],
        n=10,
        use_beam_search=True,
        max_tokens=64,
    ),
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
        max_output_tokens=1,
        text={"format": {"type": "json_schema", "name": "n", "schema": _schema(5040), "strict": True}},
    ),
    "format of 200000 properties": _post(
        "/v1/responses",
        input="Hi",
        text={"format": {"type": "json_schema", "name": "n", "schema": _schema(200_000), "strict": True}},
    ),
    "40000 prompts": _post("/v1/completions", prompt=["a b"] * 40_000, max_tokens=1),
    "a million prompts of one token": _post("/v1/completions", prompt=[[1]] * 10**6, max_tokens=1),
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
