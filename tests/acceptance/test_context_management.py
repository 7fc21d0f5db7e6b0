"""Compaction within a response: `context_management` with a threshold, and the `compaction_trigger` item."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.acceptance.error_object import check_error
from tests.acceptance.sdk_types import check_event
from tests.fix_server import Connect, StartServer
from tests.support.contract import Api
from tests.support.event_order import EventOrder
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import Frame, create, join, parse, replay

Item = dict[str, Any]
SAID = "so it is, and so it was, and so it will be. "
LONG: list[Item] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "My name is Bartholomew."},
    {"role": "assistant", "content": f"The code word is TEAL; {SAID * 200}"},
    {"role": "user", "content": "What is the code word?"},
]
"""More than a summary may have, so that the model writes one."""
SHORT: list[Item] = [
    *LONG[:2],
    *({"role": "assistant", "content": f"About {n}: {SAID}"} for n in range(2)),
    LONG[3],
]
LOW = [{"type": "compaction", "compact_threshold": 1000}]
TRIGGER: Item = {"type": "compaction_trigger"}


@pytest.fixture(scope="module")
def api(scripted_server: ServerProcess) -> Iterator[Api]:
    made = Api(scripted_server)
    yield made
    made.close()


def types(output: list[Item]) -> list[str]:
    return [item["type"] for item in output]


def stream(server: ServerProcess, **body: object) -> list[Frame]:
    with create(server.url, {"model": MODEL, **body}) as stream:
        return parse(stream.read())


def test_prompt_over_the_threshold_is_compacted_before_it_is_answered(api: Api) -> None:
    told = api.create(input=LONG, context_management=LOW, enable_response_messages=True)
    assert (told["status"], types(told["output"])) == ("completed", ["compaction", "message"])
    assert told["output"][0]["encrypted_content"].startswith("hf1.")
    prompt = told["input_messages"][-1]["message"]
    assert [text for text in ("Be brief.", "Bartholomew", "code word?") if text not in prompt] == []
    assert SAID * 3 not in prompt


def test_both_the_summary_and_the_answer_are_counted(api: Api) -> None:
    plain = api.create(input=LONG)
    told = api.create(input=LONG, context_management=LOW)
    assert told["usage"]["input_tokens"] > plain["usage"]["input_tokens"]
    assert told["usage"]["output_tokens"] > plain["usage"]["output_tokens"]


def test_prompt_below_the_threshold_is_answered_as_it_is(api: Api) -> None:
    for asked in ([{"type": "compaction", "compact_threshold": 9000}], [{"type": "compaction"}]):
        assert types(api.create(input=LONG, context_management=asked)["output"]) == ["message"]


def test_prompt_that_is_too_long_for_the_model_is_compacted_instead_of_refused(api: Api) -> None:
    talk = [*LONG[:2], *({"role": "assistant", "content": SAID * 500} for _ in range(8)), LONG[3]]
    api.refused({"input": talk}, "input")
    told = api.create(input=talk, context_management=[{"type": "compaction"}])
    assert (told["status"], types(told["output"])) == ("completed", ["compaction", "message"])


def test_stream_tells_the_compaction_in_order_and_again(scripted_server: ServerProcess) -> None:
    frames = stream(scripted_server, input=LONG, context_management=LOW)
    assert [frame.event.removeprefix("response.") for frame in frames[:6]] == [
        "created",
        "in_progress",
        "output_item.added",
        "compaction.compacting",
        "output_item.done",
        "output_item.added",
    ]
    for frame in frames:
        check_event(frame.raw.decode().partition("data: ")[2])
    EventOrder().take_all(frame.json for frame in frames)
    response = frames[0].json["response"]["id"]
    for frame in frames[:-1]:
        with replay(scripted_server.url, response, frame.number) as again:
            assert again.read() == join(frames[frame.number + 1 :])


def test_next_turn_begins_with_the_compaction(api: Api) -> None:
    first = api.create(input=LONG, context_management=LOW)
    chained = api.create(input="And now?", previous_response_id=first["id"])
    assert chained["usage"]["input_tokens"] < api.create(input=LONG)["usage"]["input_tokens"] / 2
    whole = api.create(input=[*LONG, *first["output"], {"role": "user", "content": "And now?"}])
    pruned = api.create(input=[*first["output"], {"role": "user", "content": "And now?"}])
    assert whole["usage"]["input_tokens"] == pruned["usage"]["input_tokens"]
    assert chained["usage"]["input_tokens"] == pruned["usage"]["input_tokens"]


def test_compaction_in_a_conversation_stands_for_what_was_before_it(api: Api) -> None:
    made = api.send("POST", "conversations", {"items": [{"type": "message", **item} for item in LONG[:3]]})
    name = made.json()["id"]
    api.create(input=[LONG[3]], conversation=name, context_management=LOW)
    assert SAID * 3 not in api.prompt(input="And now?", conversation=name)


def test_calls_that_are_about_to_be_gone_on_from_stay(api: Api) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "it"}'}
    output = {"type": "function_call_output", "call_id": "c1", "output": "A purple cat."}
    told = api.create(input=[*LONG, call, output], context_management=LOW, enable_response_messages=True)
    assert types(told["output"]) == ["compaction", "message"]
    prompt = told["input_messages"][-1]["message"]
    assert prompt.index("code word?") < prompt.index("look") < prompt.index("A purple cat.")


def test_call_that_waits_within_a_compaction_can_be_answered(api: Api) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    (sealed,) = api.create(input=[*LONG, call, TRIGGER])["output"]
    output = {"type": "function_call_output", "call_id": "c1", "output": "A purple cat."}
    assert "A purple cat." in api.prompt(input=[sealed, output])
    api.refused({"input": [sealed, {**output, "call_id": "c2"}]}, "input")


@pytest.mark.parametrize("talk", [LONG, SHORT], ids=["long", "short"])
def test_trigger_gives_the_compaction_and_nothing_else(
    scripted_server: ServerProcess, talk: list[Item]
) -> None:
    frames = stream(scripted_server, input=[*talk, TRIGGER])
    assert [frame.event.removeprefix("response.") for frame in frames] == [
        "created",
        "in_progress",
        "output_item.added",
        "compaction.compacting",
        "output_item.done",
        "completed",
    ]
    told = frames[-1].json["response"]
    assert told["usage"]["input_tokens"] > 0
    items = httpx.get(f"{scripted_server.api}/responses/{told['id']}/input_items").json()["data"]
    assert {item["type"] for item in items} == {"message"}


def test_what_was_short_is_carried_word_for_word(api: Api) -> None:
    (sealed,) = api.create(input=[*SHORT, TRIGGER])["output"]
    prompt = api.prompt(input=[sealed, {"role": "user", "content": "Go on."}])
    for text in (
        "Be brief.",
        "My name is Bartholomew.",
        f"About 1: {SAID.strip()}",
        "What is the code word?",
    ):
        assert text in prompt


def test_half_of_the_output_tokens_are_left_for_the_answer(api: Api) -> None:
    told = api.create(input=LONG, context_management=LOW, max_output_tokens=20)
    assert types(told["output"]) == ["compaction", "message"]
    assert told["usage"]["output_tokens"] <= 20


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"context_management": [{"type": "forgetting"}]}, "context_management"),
        ({"context_management": [TRIGGER]}, "context_management"),
        ({"context_management": []}, "context_management"),
        ({"context_management": [{}]}, "context_management[0].type"),
        (
            {"context_management": [{"type": "compaction", "compact_threshold": 999}]},
            "context_management[0].compact_threshold",
        ),
        ({"input": [TRIGGER, LONG[1]]}, "input"),
        ({"input": [LONG[1], TRIGGER, TRIGGER]}, "input"),
    ],
)
def test_wrong_wish_is_refused_by_name(api: Api, body: dict[str, Any], param: str) -> None:
    api.refused(body, param)


def test_conversation_holds_no_trigger(api: Api) -> None:
    answer = api.send("POST", "conversations", {"items": [TRIGGER]})
    assert check_error(answer, 400, "invalid_request_error")["param"] == "items"


def test_model_goes_on_from_what_it_was_told_before(demo_server: ServerProcess, connect: Connect) -> None:
    client: Any = connect(demo_server)
    talk = [
        {"role": "user", "content": "My name is Bartholomew."},
        {"role": "assistant", "content": "Nice to meet you, Bartholomew. " + SAID * 80},
        {"role": "user", "content": "What is my name?"},
    ]
    told = client.responses.create(model=MODEL, input=talk, temperature=0, context_management=LOW)
    assert [item.type for item in told.output] == ["compaction", "message"]


def test_response_goes_on_after_a_kill_in_its_summary_and_in_its_answer(start_server: StartServer) -> None:
    body = {"model": MODEL, "input": LONG, "context_management": LOW, "background": True, "seed": 5}
    server = start_server(scripted_tokens=30, scripted_step_seconds=0.02)

    def begun() -> str:
        made: str = httpx.post(f"{server.api}/responses", json=body).json()["id"]
        return made

    def ended(response: str) -> Item:
        told: Item = httpx.get(f"{server.api}/responses/{response}").json()
        return told if told["status"] == "completed" else {}

    uncut = begun()
    expected = eventually(lambda: ended(uncut), within=30)
    for taken in (5, 15):  # before the summary is told, and after
        cut = begun()
        with replay(server.url, cut) as reader:
            reader.take(taken)
            server.kill()
        server.start()
        told = eventually(partial(ended, cut), within=60)
        assert types(told["output"]) == ["compaction", "message"]
        assert told["output"][1]["content"] == expected["output"][1]["content"]
        assert told["usage"]["output_tokens"] == expected["usage"]["output_tokens"]
