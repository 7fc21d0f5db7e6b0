"""Every parameter of OpenAI's Responses API, and what this server does with each.

What a model makes of them is shown in other files. OpenAI's own types say whether a row is missing.
"""

from collections.abc import Iterator
from typing import get_args, get_type_hints

import pytest
from openai.types.responses import response_create_params
from openai.types.responses.response_includable import ResponseIncludable

from tests.acceptance.error_object import check_error
from tests.support.contract import (
    ASK,
    FUNCTION,
    NOTHING,
    USER,
    Api,
    Body,
    Row,
    all_of,
    changes_nothing,
    in_prompt,
    refused,
    told,
)
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess


@pytest.fixture(scope="module")
def api(scripted_server: ServerProcess) -> Iterator[Api]:
    made = Api(scripted_server)
    yield made
    made.close()


def goes_on(api: Api) -> None:
    first = api.create(input="My name is Ada.", instructions="Be curt.")
    told_again = api.create(previous_response_id=first["id"])
    assert (told_again["previous_response_id"], told_again["instructions"]) == (first["id"], None)
    prompt = api.prompt(previous_response_id=first["id"])
    assert "My name is Ada." in prompt
    assert "Be curt." not in prompt


def goes_on_in_conversation(api: Api) -> None:
    item = {"type": "message", "role": "user", "content": "My name is Ada."}
    made = api.send("POST", "conversations", {"items": [item]}).json()
    for form in (made["id"], {"id": made["id"]}):
        assert api.create(conversation=form)["conversation"] == {"id": made["id"]}
    assert "My name is Ada." in api.prompt(conversation=made["id"])
    api.refused({"conversation": made["id"], "previous_response_id": "resp_x"}, "conversation")


def runs_in_background(api: Api) -> None:
    made = api.create(background=True)
    assert made["background"] is True
    assert made["status"] in ("queued", "in_progress", "completed")
    place = f"responses/{made['id']}"
    eventually(lambda: api.send("GET", place).json()["status"] == "completed", within=30)


def is_not_stored(api: Api) -> None:
    made = api.create(store=False)
    assert made["store"] is False
    check_error(api.send("GET", f"responses/{made['id']}"), 404, "invalid_request_error")
    assert api.create()["store"] is True


def streams(api: Api) -> None:
    options = {"include_obfuscation": True}
    body = {"model": MODEL, "input": ASK, "stream": True, "stream_options": options}
    answer = api.send("POST", "responses", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "response.completed" in answer.text
    assert "obfuscation" not in answer.text


def is_cut(api: Api) -> None:
    made = api.create(max_output_tokens=3)
    assert (made["status"], made["max_output_tokens"]) == ("incomplete", 3)
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert made["usage"]["output_tokens"] == 3


def tells_logprobs(api: Api) -> None:
    made = api.create(top_logprobs=2, include=["message.output_text.logprobs"])
    assert made["top_logprobs"] == 2
    assert {len(one["top_logprobs"]) for one in made["output"][0]["content"][0]["logprobs"]} == {2}


def includes(api: Api) -> None:
    assert set(get_args(ResponseIncludable)) == {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
    made = api.create(include=[*get_args(ResponseIncludable)])
    assert made["output"][0]["content"][0]["logprobs"]
    api.refused({"include": "message.output_text.logprobs"}, "include")


def truncates(api: Api) -> None:
    long: Body = {"role": "user", "content": "So it went on and on. " * 3000}
    body: Body = {"input": [long, {"role": "assistant", "content": "Yes."}, long, USER]}
    api.refused(body, "input")
    made = api.create(truncation="auto", **body)
    assert (made["truncation"], made["status"]) == ("auto", "completed")


def prompt_is_looked_up(api: Api) -> None:
    body = {"model": MODEL, "input": ASK, "prompt": {"id": "never put"}}
    error = check_error(api.send("POST", "responses", body), 404, "invalid_request_error")
    assert error["param"] == "prompt.id"


SCHEMA: Body = {"type": "json_schema", "name": "a", "schema": NOTHING, "strict": True}

TOLD_SCHEMA = {**SCHEMA, "description": None}

CALL: Body = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT: Body = {"type": "function_call_output", "call_id": "c1", "output": "A cat."}
COMPRESSION = "image.context_compression"
SOON: Body = {"completion_window": "soonest", "continuation_id": "a"}
WINDOW = "background_options.completion_window"


def window(value: object) -> Body:
    return {"completion_window": value}


REASONING: Body = {"effort": None, "summary": None, "context": "current_turn", "mode": "standard"}


def reads_reasoning_of_turns(api: Api) -> None:
    thought: Body = {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "I see a cat."}],
    }
    answer: Body = {"role": "assistant", "content": "A cat."}
    earlier = [USER, thought, answer, USER]
    for context in ("auto", "current_turn"):
        body: Body = {"input": earlier, "reasoning": {"context": context}}
        assert api.create(**body)["reasoning"]["context"] == "current_turn"
        assert "I see a cat." not in api.prompt(**body)
    assert "I see a cat." in api.prompt(input=[USER, thought, CALL, OUTPUT])
    for wrong in ("all_turns", "last_turn"):  # this model's template leaves out the reasoning of others
        api.refused({"input": earlier, "reasoning": {"context": wrong}}, "reasoning.context")


def only_prefills(api: Api) -> None:
    for more in ({}, {"background": True}):
        place = f"responses/{api.create(prompt_cache_options={'prewarm': True}, **more)['id']}"

        def is_complete(place: str = place) -> bool:
            return bool(api.send("GET", place).json()["status"] == "completed")

        eventually(is_complete, within=30)
        found = api.send("GET", place).json()
        assert (found["output"], found["usage"]["output_tokens"]) == ([], 0)


PARAMETERS = [
    Row("model", "M", told(model=MODEL)),
    Row("input", "M", all_of(in_prompt("Hear me", input="Hear me"), in_prompt(ASK, input=[USER]))),
    Row("instructions", "M", all_of(told(instructions="Be."), in_prompt("Be so.", instructions="Be so."))),
    Row("previous_response_id", "M", goes_on),
    Row("conversation", "S", goes_on_in_conversation),
    Row("store", "M", is_not_stored),
    Row("background", "M", runs_in_background),
    Row("stream", "M", streams),
    Row("stream_options", "A", changes_nothing(stream_options={"include_obfuscation": True})),
    Row("tools", "M", in_prompt("look", tools=[FUNCTION])),
    Row("tool_choice", "M", told(tool_choice="none")),
    Row("parallel_tool_calls", "M", told(parallel_tool_calls=False)),
    Row("max_tool_calls", "M", all_of(told(max_tool_calls=3), refused("max_tool_calls", max_tool_calls=0))),
    Row(
        "text",
        "M",
        told(
            TOLD_SCHEMA,
            at="format",
            text={"format": SCHEMA},
            max_output_tokens=4,
        ),
    ),
    Row("text.verbosity", "A", told("low", at="verbosity", text={"verbosity": "low"})),
    Row("reasoning", "M", told({**REASONING, "effort": "high"}, reasoning={"effort": "high"})),
    Row("reasoning.effort", "M", refused("reasoning.effort", reasoning={"effort": "enormous"})),
    Row("reasoning.effort max", "M", told("max", at="effort", reasoning={"effort": "max"})),
    Row("reasoning.summary", "A", told("auto", at="summary", reasoning={"summary": "auto"})),
    Row(
        "reasoning.generate_summary", "A", told("auto", at="summary", reasoning={"generate_summary": "auto"})
    ),
    Row("reasoning.context", "M", reads_reasoning_of_turns),
    Row("reasoning.mode", "A", told("standard", at="mode", reasoning={"mode": "standard"})),
    Row("reasoning.mode pro", "R", refused("reasoning.mode", reasoning={"mode": "pro"})),
    Row("reasoning.mode unknown", "R", refused("reasoning.mode", reasoning={"mode": "con"})),
    Row("background_options", "A", changes_nothing(background_options=SOON)),
    Row("background_options empty", "A", changes_nothing(background_options={})),
    Row(
        "background_options priority",
        "R",
        refused("priority", background=True, background_options=window("2h"), priority=0),
    ),
    Row("background_options alone", "R", refused(WINDOW, background_options=window("8h"))),
    Row(
        "background_options stream",
        "R",
        refused(WINDOW, background=True, stream=True, background_options=window("8h")),
    ),
    Row(
        "background_options never", "R", refused(WINDOW, background=True, background_options=window("never"))
    ),
    Row("background_options number", "R", refused(WINDOW, background=True, background_options=window(7))),
    Row("background_options text", "R", refused("background_options", background_options="2h")),
    Row("include", "M", includes),
    Row("temperature", "M", told(temperature=0.25)),
    Row("top_p", "M", told(top_p=0.5)),
    Row("top_logprobs", "M", tells_logprobs),
    Row("max_output_tokens", "M", is_cut),
    Row("presence_penalty", "M", told(presence_penalty=0.5)),
    Row("frequency_penalty", "M", told(frequency_penalty=-0.5)),
    Row("truncation", "M", truncates),
    Row(
        "metadata",
        "M",
        all_of(told(metadata={"a": "b"}), refused("metadata.a", metadata={"a": "b" * 513})),
    ),
    Row("service_tier", "A", told("default", service_tier="flex")),
    Row("prompt", "S", prompt_is_looked_up),
    Row("prompt_cache_key", "A", told(prompt_cache_key="k")),
    Row("prompt_cache_options.prewarm", "S", only_prefills),
    Row("prompt_cache_options", "A", changes_nothing(prompt_cache_options={"ttl": "30m"})),
    Row("prompt_cache_retention", "A", changes_nothing(prompt_cache_retention="24h")),
    Row(
        "safety_identifier",
        "A",
        all_of(
            told(safety_identifier="s" * 128),
            refused("safety_identifier", safety_identifier="s" * 129),
        ),
    ),
    Row("user", "A", told(user="u")),
    Row("moderation", "A", refused("moderation", moderation={"model": "omni-moderation-latest"})),
    Row("access_programs", "A", changes_nothing(access_programs={"cyber": "standard"})),
    Row("image", "A", changes_nothing(image={"context_compression": "auto"})),
    Row("image enabled", "R", refused(COMPRESSION, image={"context_compression": "enabled"})),
    Row("client_metadata", "A", changes_nothing(client_metadata={"app": "x"}, never_heard_of={"a": [1]})),
]

ELSEWHERE = {"context_management"}
"""What has a test file of its own."""


@pytest.mark.parametrize("row", PARAMETERS, ids=str)
def test_parameter_is_treated_as_its_mark_says(api: Api, row: Row) -> None:
    row.check(api)


def test_no_parameter_of_openai_is_missing_from_the_rows() -> None:
    parameters = set(get_type_hints(response_create_params.ResponseCreateParamsBase))
    assert len(parameters) == 33
    assert parameters - {row.name for row in PARAMETERS} == ELSEWHERE


NEEDED = {
    *("id", "object", "created_at", "status", "completed_at", "error", "incomplete_details", "instructions"),
    *("metadata", "model", "output", "parallel_tool_calls", "temperature", "top_p", "tool_choice", "tools"),
    *("background", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key"),
    *("reasoning", "safety_identifier", "service_tier", "store", "text", "top_logprobs", "truncation"),
    *("usage", "user", "presence_penalty", "frequency_penalty", "moderation", "prompt_cache_retention"),
}


def test_response_has_each_field_that_clients_need_and_no_other(api: Api) -> None:
    made = api.create()
    assert set(made) == NEEDED
    assert [name for name in ("created_at", "completed_at") if type(made[name]) is not int] == []
