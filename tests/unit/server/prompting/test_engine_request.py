from typing import Any, get_args

import msgspec
import pytest

from engine.request import ModelInfo, RequestRefused
from server.admission.request_validation import refuse_unsupported
from server.errors import InvalidRequest, Overloaded, TooManyRequests
from server.prompting.engine_request import refusal, request_echo
from server.prompting.prompt_limits import too_long
from server.protocol.responses.request import CreateResponse

MODEL = ModelInfo(vocab_size=100, context_length=50, stop_ids=frozenset({0}), temperature=0.7, top_p=0.9)


def make_request(**fields: Any) -> CreateResponse:
    return CreateResponse(model="m", input="x", **fields)


def test_what_a_request_leaves_open_is_filled_in() -> None:
    echo = msgspec.to_builtins(request_echo(make_request(), [], MODEL))
    assert echo == {
        "background": False,
        "frequency_penalty": 0.0,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": "m",
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None, "context": "current_turn", "mode": "standard"},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 0.7,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 0.9,
        "truncation": "disabled",
        "user": None,
    }


def test_what_a_request_says_is_repeated() -> None:
    body = {
        "model": "m",
        "input": "x",
        "instructions": "Be brief.",
        "max_output_tokens": 5,
        "max_tool_calls": 2,
        "metadata": {"k": "v"},
        "parallel_tool_calls": False,
        "previous_response_id": "resp_1",
        "prompt_cache_key": "p",
        "reasoning": {"effort": "low", "summary": "auto", "context": "all_turns", "mode": "standard"},
        "safety_identifier": "s",
        "store": False,
        "temperature": 0.0,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "tool_choice": "none",
        "top_p": 0.0,
        "truncation": "auto",
        "user": "u",
    }
    echo = msgspec.to_builtins(request_echo(msgspec.convert(body, CreateResponse), [], MODEL))
    assert {name: echo[name] for name in body if name != "input"} == {
        name: value for name, value in body.items() if name != "input"
    }


def test_an_echo_is_stored_and_read_back_the_same() -> None:
    echo = request_echo(make_request(metadata={"k": "v"}), [], MODEL)
    assert msgspec.json.decode(msgspec.json.encode(echo), type=type(echo)) == echo


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"expires_after": {"anchor": "created_at", "seconds": 60}, "store": False}, "expires_after"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    request = msgspec.convert({"model": "m", "input": "x", **fields}, CreateResponse)
    with pytest.raises(InvalidRequest) as caught:
        refuse_unsupported(request)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"background": True, "tools": [], "top_logprobs": 0, "presence_penalty": 0, "frequency_penalty": 0},
        {"tool_choice": "auto"},
        {"text": {}},
        {"text": {"format": {"type": "text"}, "verbosity": "high"}},
        {"reasoning": {"effort": "high"}, "max_tool_calls": 1, "truncation": "auto", "user": "u"},
    ],
)
def test_what_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    refuse_unsupported(msgspec.convert({"model": "m", "input": "x", **fields}, CreateResponse))


ASKED = msgspec.convert({"model": "m", "input": "x"}, CreateResponse)
REASONS = get_args(RequestRefused.__init__.__annotations__["reason"])


@pytest.mark.parametrize("reason", REASONS)
def test_every_refusal_of_the_engine_is_an_answer(reason: Any) -> None:
    told = refusal(RequestRefused(reason, "Said by the engine."), ASKED)
    if reason in ("overloaded", "closed"):
        assert isinstance(told, Overloaded)
    elif reason == "share_full":
        assert isinstance(told, TooManyRequests)
    else:
        assert isinstance(told, InvalidRequest)
        assert str(told) == "Said by the engine."
    assert told.code == {
        "too_long": "context_length_exceeded",
        "overloaded": "overloaded",
        "closed": "overloaded",
        "share_full": "rate_limit_exceeded",
        "bad_grammar": "invalid_function_parameters",
        "bad_beams": "unsupported_parameter",
        "bad_image": "invalid_image",
    }.get(reason)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "tools"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text"}}}, "tools"),
    ],
)
def test_a_refused_grammar_names_what_it_was_made_from(fields: dict[str, Any], param: str) -> None:
    request = msgspec.convert({"model": "m", "input": "x", **fields}, CreateResponse)
    assert refusal(RequestRefused("bad_grammar", "No."), request).param == param


def test_an_input_without_room_for_an_answer_says_both_numbers() -> None:
    told = too_long(50, tokens=60)
    assert (told.code, told.param) == ("context_length_exceeded", "input")
    assert "60" in str(told)
    assert "50" in str(told)
