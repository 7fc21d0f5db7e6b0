"""Tools, by a model that was taught to call them: called, answered, chosen, held to their schema."""

import json
from typing import Any

import pytest

from tests.fix_server import Connect
from tests.support.server_process import MODEL, ServerProcess

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
CITY = {"type": "string", "enum": ["Paris", "Rome"]}
#: What a model that knows nothing of these must be able to end: free text may go on for ever.
SMALL: list[dict[str, Any]] = [
    {**WEATHER, "name": name, "parameters": {**WEATHER["parameters"], "properties": {"city": CITY}}}
    for name in ("get_weather", "get_time")
]
ASK = "What is the weather in Paris?"
OUTPUT = "It is sunny."
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def client(demo_server: ServerProcess, connect: Connect) -> Any:
    return connect(demo_server)


def answer_of(call: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.call_id, "output": OUTPUT}


def test_call_is_answered_alike_through_a_chain_and_through_a_full_replay(client: Any) -> None:
    ask: dict[str, Any] = {"model": MODEL, "tools": [WEATHER], "temperature": 0}
    first = client.responses.create(input=ASK, **ask)
    (call,) = first.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    chained = client.responses.create(
        input=[answer_of(call)],
        previous_response_id=first.id,
        **ask,
    )
    replayed = client.responses.create(
        input=[{"role": "user", "content": ASK}, call.model_dump(exclude_none=True), answer_of(call)],
        **ask,
    )
    assert OUTPUT in chained.output_text
    assert replayed.output_text == chained.output_text
    assert chained.usage is not None
    assert chained.usage.input_tokens_details.cached_tokens > 0


def test_streamed_call_is_the_whole_one(client: Any) -> None:
    with client.responses.stream(model=MODEL, input=ASK, tools=[WEATHER], temperature=0) as stream:
        events = list(stream)
    types = [event.type for event in events]
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert types[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert types[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    call = stream.get_final_response().output[0]
    assert call.type == "function_call"
    assert "".join(pieces) == call.arguments


def test_long_arguments_arrive_while_they_are_written(client: Any) -> None:
    days = {"type": "array", "items": {"enum": ["Monday", "Tuesday"]}, "minItems": 60, "maxItems": 60}
    parameters = {
        "type": "object",
        "properties": {"days": days},
        "required": ["days"],
        "additionalProperties": False,
    }
    plan = {"type": "function", "name": "plan", "strict": True, "parameters": parameters}
    with client.responses.stream(
        model=MODEL, input=ASK, tools=[plan], tool_choice="required", temperature=0
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
    call = stream.get_final_response().output[0]
    assert len(json.loads(call.arguments)["days"]) == 60
    assert "".join(pieces) == call.arguments
    assert len(pieces) > 2  # one delta a commit, and no commit waits for so many tokens


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "name": "get_time"}, {"get_time"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_time"}],
            },
            {"get_time"},
        ),
    ],
)
def test_what_must_be_called_is_called_whatever_was_asked(client: Any, choice: Any, names: set[str]) -> None:
    for ask in ("Hello", "Say hello there again", "My name is Ada."):
        response = client.responses.create(
            model=MODEL,
            input=ask,
            tools=SMALL,
            tool_choice=choice,
            parallel_tool_calls=False,
            reasoning={"effort": "none"},
        )
        (call,) = [item for item in response.output if item.type == "function_call"]
        assert call.name in names
        assert json.loads(call.arguments)["city"] in CITY["enum"]


def test_tool_that_must_not_be_called_is_not(client: Any) -> None:
    response = client.responses.create(
        model=MODEL,
        input=ASK,
        tools=[WEATHER],
        tool_choice="none",
        temperature=0,
    )
    assert [item.type for item in response.output] == ["message"]


def test_answer_has_the_schema_that_was_asked_for(client: Any) -> None:
    for ask in ("Hello", "Give me a person as JSON.", "Count to 30"):
        response = client.responses.create(
            model=MODEL,
            input=ask,
            text={"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}},
        )
        person = json.loads(response.output_text)
        assert set(person) == {"name", "age"}
        assert isinstance(person["age"], int)


def test_chat_calls_tools_in_its_own_shape(client: Any) -> None:
    tool: Any = {"type": "function", "function": {key: WEATHER[key] for key in WEATHER if key != "type"}}
    messages: list[Any] = [{"role": "user", "content": ASK}]
    ask: dict[str, Any] = {"model": MODEL, "messages": messages, "tools": [tool], "temperature": 0}
    whole = client.chat.completions.create(**ask)
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**ask, stream=True)]
    pieces = [piece for chunk in chunks for piece in chunk.delta.tool_calls or []]
    assert pieces[0].function is not None
    assert pieces[0].function.name == "get_weather"
    assert "".join((piece.function and piece.function.arguments) or "" for piece in pieces) == (
        call.function.arguments
    )
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": OUTPUT}]
    assert OUTPUT in (client.chat.completions.create(**ask).choices[0].message.content or "")
