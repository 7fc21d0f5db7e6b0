"""What gpt-oss and Qwen3 write when asked for a tongue twister, as the events that a client is told.

The outputs have the form of vLLM's sample streams for "say double bubble bath ten times fast": thoughts, then
the answer. The order and the places are those of OpenAI's API, where each item has an index of its own.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from server.generation.output_decoding import DecodingSpec
from server.generation.run import Run
from server.model_formats.model_format import ModelFormat, PromptConversation, PromptTool
from server.protocol.responses.events import first_events
from tests.support import families, harmony
from tests.support.builders import LATER, RESPONSE, USAGE, make_facts, rendered

TWISTER = ", ".join(["double bubble bath"] * 10)
THOUGHT = "They want a tongue twister.\nTen times."
ASKED = harmony.user("say double bubble bath ten times fast")
SHOUT = PromptTool(name="shout", parameters={"type": "object", "properties": {"text": {"type": "string"}}})
ARGUMENTS = '{"text": "double bubble bath"}'

BEGUN = [("response.created", None, None), ("response.in_progress", None, None)]
ENDED = [("response.completed", None, None)]


def reasoning(index: int) -> list[tuple[str, int | None, int | None]]:
    return [
        ("response.output_item.added", index, None),
        ("response.content_part.added", index, 0),
        ("response.reasoning_text.delta", index, 0),
        ("response.reasoning_text.done", index, 0),
        ("response.content_part.done", index, 0),
        ("response.output_item.done", index, None),
    ]


def message(index: int) -> list[tuple[str, int | None, int | None]]:
    return [
        ("response.output_item.added", index, None),
        ("response.content_part.added", index, 0),
        ("response.output_text.delta", index, 0),
        ("response.output_text.done", index, 0),
        ("response.content_part.done", index, 0),
        ("response.output_item.done", index, None),
    ]


def call(index: int) -> list[tuple[str, int | None, int | None]]:
    return [
        ("response.output_item.added", index, None),
        ("response.function_call_arguments.delta", index, None),
        ("response.function_call_arguments.done", index, None),
        ("response.output_item.done", index, None),
    ]


def events_of(model_format: ModelFormat, tokens: Sequence[int], size: int) -> list[dict[str, Any]]:
    """The stream's events where the engine gives so many tokens at once."""
    prompt = model_format.write(PromptConversation(items=[ASKED], tools=[SHOUT]))
    run = Run(make_facts(), DecodingSpec(model_format.parser(prompt)))
    made = first_events(run.facts, run.facts.echo) + run.start()
    for start in range(0, len(tokens), size):
        made += run.tokens(tokens[start : start + size], LATER)
    return rendered(RESPONSE, made + run.finish("stop", USAGE, LATER))


def places(events: Sequence[dict[str, Any]]) -> list[tuple[str, int | None, int | None]]:
    """Kinds and indices, with the deltas of one part as one."""
    found: list[tuple[str, int | None, int | None]] = []
    for event in events:
        place = (event["type"], event.get("output_index"), event.get("content_index"))
        if not (found and event["type"].endswith(".delta") and place == found[-1]):
            found.append(place)
    return found


GPT_OSS = {
    "answer": f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant"
    f"<|channel|>final<|message|>{TWISTER}<|return|>",
    "call": f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant"
    "<|channel|>commentary<|message|>I shout.<|end|><|start|>assistant"
    f"<|channel|>commentary to=functions.shout <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
}
QWEN3 = {
    "answer": f"<think>\n{THOUGHT}\n</think>\n\n{TWISTER}<|im_end|>",
    "call": f"<think>\n{THOUGHT}\n</think>\n\nI shout.\n"
    f'<tool_call>\n{{"name": "shout", "arguments": {ARGUMENTS}}}\n</tool_call><|im_end|>',
}
MODELS: list[Any] = [
    pytest.param(harmony.harmony_format, harmony.ids_of, GPT_OSS, id="gpt-oss"),
    pytest.param(
        lambda: families.format_of("hermes"),
        lambda text: families.ids_of("hermes", text),
        QWEN3,
        id="qwen3",
    ),
]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(("model_format", "ids_of", "outputs"), MODELS)
def test_thoughts_and_an_answer_are_two_items_told_in_openais_order(
    model_format: Any, ids_of: Any, outputs: dict[str, str], size: int
) -> None:
    events = events_of(model_format(), ids_of(outputs["answer"]), size)
    assert places(events) == [*BEGUN, *reasoning(0), *message(1), *ENDED]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = {kind: "".join(e["delta"] for e in events if e["type"] == f"response.{kind}.delta")
              for kind in ("reasoning_text", "output_text")}  # fmt: skip
    assert deltas == {"reasoning_text": THOUGHT, "output_text": TWISTER}
    thought, answer = events[-1]["response"]["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    assert (thought["summary"], answer["content"][0]["text"]) == ([], TWISTER)
    for index, item in enumerate((thought, answer)):
        ids = {
            event["item_id"] for event in events if event.get("output_index") == index and "item_id" in event
        }
        assert ids == {item["id"]}


@pytest.mark.parametrize(("model_format", "ids_of", "outputs"), MODELS)
def test_thoughts_words_and_a_call_are_three_items(
    model_format: Any, ids_of: Any, outputs: dict[str, str]
) -> None:
    events = events_of(model_format(), ids_of(outputs["call"]), 1)
    assert places(events) == [*BEGUN, *reasoning(0), *message(1), *call(2), *ENDED]
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [event["arguments"] for event in done] == [ARGUMENTS]
    called = events[-1]["response"]["output"][2]
    assert (called["name"], called["arguments"]) == ("shout", ARGUMENTS)
