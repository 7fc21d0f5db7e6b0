"""vLLM's parameters of responses: reasoning left out, a history that is brought, grammars in EBNF."""

from typing import Any

import httpx

from tests.support.server_process import MODEL, ServerProcess


def ask(server: ServerProcess, **body: Any) -> Any:
    answer = httpx.post(
        f"{server.api}/responses", json={"model": MODEL, "temperature": 0, **body}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def test_reasoning_is_left_out_where_that_is_asked_and_counted_all_the_same(
    demo_server: ServerProcess,
) -> None:
    thinks: dict[str, Any] = {"input": "Count to 3", "reasoning": {"effort": "low"}}
    told, left_out = ask(demo_server, **thinks), ask(demo_server, **thinks, include_reasoning=False)
    assert kinds(told) == ["reasoning", "message"]
    assert kinds(left_out) == ["message"]
    assert left_out["output"][0]["content"][0]["text"] == told["output"][1]["content"][0]["text"]
    assert left_out["usage"]["output_tokens_details"] == told["usage"]["output_tokens_details"]
    assert left_out["usage"]["output_tokens"] == told["usage"]["output_tokens"]


def test_messages_that_are_brought_are_before_the_input(demo_server: ServerProcess) -> None:
    before = [
        {"role": "user", "content": "My name is Bartholomew."},
        {"role": "assistant", "content": "Nice to meet you, Bartholomew."},
    ]
    told = ask(demo_server, input="What is my name?", previous_input_messages=before)
    assert "Bartholomew" in told["output"][0]["content"][0]["text"]
    after = ask(demo_server, input="What is my name?", previous_response_id=told["id"])
    assert "Bartholomew" in after["output"][0]["content"][0]["text"]
    listed = httpx.get(f"{demo_server.api}/responses/{told['id']}/input_items?order=asc", timeout=60).json()
    assert [item["role"] for item in listed["data"]] == ["user", "assistant", "user"]


def test_a_grammar_in_ebnf_is_obeyed(demo_server: ServerProcess) -> None:
    told = ask(demo_server, input="Hi", guided_grammar='root ::= "yes, " [0-9]{3} "!"')
    text = told["output"][0]["content"][0]["text"]
    assert text.startswith("yes, ")
    assert text[5:8].isdigit()
    assert text.endswith("!")


def test_a_format_that_is_not_strict_may_have_what_cannot_be_enforced(demo_server: ServerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
        "required": ["a"],
        "additionalProperties": False,
        "not": {"required": ["b"]},
    }
    form = {"type": "json_schema", "name": "answer", "schema": schema}
    told = ask(demo_server, input="Hi", text={"format": form}, max_output_tokens=60)
    assert told["output"][0]["content"][0]["text"].startswith("{")
    strict = {"model": MODEL, "input": "Hi", "text": {"format": {**form, "strict": True}}}
    refused = httpx.post(f"{demo_server.api}/responses", json=strict, timeout=60)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "text.format.schema"


def test_a_negative_seed_is_a_seed(demo_server: ServerProcess) -> None:
    body = {"input": "Hi", "temperature": 2, "max_output_tokens": 8}
    first, again = (ask(demo_server, **{**body, "seed": seed}) for seed in (-1, 2**63 - 1))
    assert first["output"][0]["content"] == again["output"][0]["content"]
    chat = httpx.post(
        f"{demo_server.api}/chat/completions",
        json={"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "seed": -5, "max_tokens": 2},
        timeout=60,
    )
    assert chat.status_code == 200
