import json
from typing import Any

import msgspec
import pytest

from server.completions.chat import ChatFormat, chat_completion
from server.completions.chunk_stream import ChunkFormat, ChunkStream, FinalChoice
from server.completions.legacy import LegacyFormat
from server.generation.event_emitter import EventEmitter
from server.model_formats.model_format import CallDelta, CallEnd, CallStart, Delta, ReasoningDelta, TextDelta
from server.protocol.completions.requests import TextRequest
from server.protocol.responses.events import error_frame, first_events, frame
from tests.support.builders import CREATED, RESPONSE, make_echo, make_ending, make_facts

CHAT = ChatFormat(id="chatcmpl-1", created=1, model="m", include_usage=True)
LEGACY = LegacyFormat(
    id="cmpl-1",
    created=1,
    model="m",
    include_usage=True,
    request=TextRequest(model="m", prompt="", n=2),
    prompts=["Go"],
    first_tokens=["G"],
)
SAID: list[Delta] = [ReasoningDelta("Hm"), TextDelta("a"), CallStart("look"), CallDelta("{}"), CallEnd()]


def frames_of(said: list[Delta], **ending: Any) -> list[bytes]:
    emitter = EventEmitter(RESPONSE, CREATED, make_echo())
    events = first_events(make_facts(), make_echo())
    for delta in said:
        events += emitter.delta(delta)
    return [frame(RESPONSE, event) for event in events + emitter.end(make_ending(**ending))[0]]


def chunks(frames: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(one.removeprefix(b"data: ")) for one in frames]


def test_a_chat_is_told_of_its_role_reasoning_text_and_calls() -> None:
    told = chunks(ChunkStream(CHAT).rewrite(0, frames_of(SAID)))
    deltas = [chunk["choices"][0]["delta"] for chunk in told]
    assert deltas[:3] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm", "reasoning": "Hm"},
        {"content": "a"},
    ]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 0]
    assert calls[0]["function"] == {"name": "look", "arguments": ""}
    assert calls[1]["function"] == {"arguments": "{}"}
    assert told[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_texts_around_a_call_are_paragraphs_of_one_content_streamed_and_whole() -> None:
    said: list[Delta] = [TextDelta("First."), CallStart("look"), CallDelta("{}"), CallEnd()]
    said += [TextDelta("Sec"), TextDelta("ond.")]
    frames = frames_of(said)
    told = chunks(ChunkStream(CHAT).rewrite(0, frames))
    deltas = [chunk["choices"][0]["delta"] for chunk in told]
    assert "".join(delta.get("content", "") for delta in deltas) == "First.\n\nSecond."
    response = json.loads(frames[-1].split(b"data: ")[1])["response"]
    whole = chat_completion(CHAT, [msgspec.convert(response, FinalChoice)])
    assert whole.choices[0].message.content == "First.\n\nSecond."


def test_a_legacy_completion_is_told_of_text_alone() -> None:
    told = chunks(ChunkStream(LEGACY).rewrite(1, frames_of(SAID)))
    assert [chunk["choices"][0]["text"] for chunk in told] == ["a", ""]
    assert {chunk["choices"][0]["index"] for chunk in told} == {1}
    assert [chunk["choices"][0]["finish_reason"] for chunk in told] == [None, "stop"]


@pytest.mark.parametrize("shape", [CHAT, LEGACY])
def test_the_usage_has_the_prompt_once_and_all_choices(shape: ChunkFormat) -> None:
    stream = ChunkStream(shape)
    for index in (1, 0):
        stream.rewrite(index, frames_of([TextDelta("a")], input_tokens=5, output_tokens=2))
    (last,) = chunks(stream.end())
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (5, 4)


@pytest.mark.parametrize("shape", [CHAT, LEGACY])
def test_a_failed_choice_is_told_as_an_error(shape: ChunkFormat) -> None:
    ending = {"status": "failed", "error_code": "server_error", "error_message": "It broke."}
    (*_, last) = chunks(ChunkStream(shape).rewrite(0, frames_of([], **ending)))
    assert last["error"]["message"] == "It broke."


@pytest.mark.parametrize("shape", [CHAT, LEGACY])
def test_error_that_ends_the_stream_is_an_error_object(shape: ChunkFormat) -> None:
    (chunk,) = ChunkStream(shape).rewrite(0, [error_frame(7, "stream_forked", "Read it again.")])
    error = json.loads(chunk.removeprefix(b"data: "))["error"]
    assert error == {
        "message": "Read it again.",
        "type": "server_error",
        "param": None,
        "code": "stream_forked",
    }


@pytest.mark.parametrize("shape", [CHAT, LEGACY])
def test_events_that_make_no_chunk_are_not_decoded(shape: ChunkFormat) -> None:
    damaged = b"id: 1\nevent: response.output_item.done\ndata: {\n\n"
    assert ChunkStream(shape).rewrite(0, [damaged]) == []
