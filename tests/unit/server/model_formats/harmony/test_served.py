"""A tiny gpt-oss from its folder to what it says: vocabulary, prompt, the real engine, grammar, parser."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from engine.request import Finished
from server.model_formats.harmony.harmony_format import HarmonyFormat
from server.model_formats.model_format import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    MessageStart,
    Prompt,
    PromptConversation,
    PromptTool,
    ReasoningDelta,
    TextDelta,
    merge_deltas,
)
from server.model_formats.select_format import load_model_format
from server.protocol.responses.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)
from server.protocol.responses.request import TextFormat
from server.protocol.responses.tools import ToolChoice
from tests.support.engines import Bench, make_request, start_model
from tests.support.harmony import user
from tests.support.tiny_gpt_oss import GREETING, OUTSIDE, QUESTION, WEATHER, tiny_gpt_oss

TOOL = PromptTool(name="weather", description="Tells the weather.", parameters=WEATHER, strict=True)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = start_model(tiny_gpt_oss())
    yield made
    made.engine.close(drain=True)


@pytest.fixture(scope="module")
def model_format(bench: Bench) -> HarmonyFormat:
    """Picked by the folder, its vocabulary made from the tokenizer."""
    picked = load_model_format(tiny_gpt_oss(), bench.engine.model_info.stop_ids)
    assert isinstance(picked, HarmonyFormat)
    return picked


class Talk:
    """Asks the model and reads what it says."""

    def __init__(self, bench: Bench, model_format: HarmonyFormat) -> None:
        self._bench, self._model_format = bench, model_format

    def prompt(self, items: Sequence[Item], **fields: Any) -> Prompt:
        return self._model_format.write(PromptConversation(items=items, **fields))

    def say(self, prompt: Prompt, **fields: Any) -> list[Delta]:
        engine_request = make_request(
            uuid4().hex,
            prompt.token_ids,
            fields.pop("max_tokens", 100),
            stop_ids=prompt.stop_ids,
            grammar=prompt.grammar,
            **fields,
        )
        (outcome,) = self._bench.run(engine_request)
        assert isinstance(outcome.last, Finished)
        self.reason = outcome.last.reason
        parser = self._model_format.parser(prompt)
        told = [delta for token in outcome.tokens for delta in parser.feed([token])]
        return merge_deltas(told + parser.close())


@pytest.fixture
def talk(bench: Bench, model_format: HarmonyFormat) -> Talk:
    return Talk(bench, model_format)


def test_it_thinks_and_answers(talk: Talk) -> None:
    assert talk.say(talk.prompt([user(GREETING)])) == [
        ReasoningDelta("A greeting is wanted."),
        MessageStart("final_answer"),
        TextDelta("Grüß dich, 世界 🙂!"),
    ]
    assert talk.reason == "stop"


def test_it_calls_a_function_and_answers_from_its_output(talk: Talk) -> None:
    question: list[Item] = [user(QUESTION)]
    prompt = talk.prompt(question, instructions="Be kind.", tools=[TOOL])
    assert prompt.grammar is not None
    assert talk.say(prompt) == [
        ReasoningDelta("I need the tool."),
        MessageStart("commentary"),
        TextDelta("Let me look outside."),
        CallStart("weather"),
        CallDelta('{"city":"Ulm"}'),
        CallEnd(),
    ]
    items: list[Item] = [
        *question,
        Reasoning("rs", "completed", [], [ReasoningText("I need the tool.")]),
        Message("m", "completed", "assistant", [OutputText("Let me look outside.")], "commentary"),
        FunctionCall("fc", "completed", "call_1", "weather", '{"city":"Ulm"}'),
        FunctionCallOutput("fo", "completed", "call_1", OUTSIDE),
    ]
    assert talk.say(talk.prompt(items, instructions="Be kind.", tools=[TOOL])) == [
        ReasoningDelta("Now I know it."),
        MessageStart("final_answer"),
        TextDelta("In Ulm it is 18 degrees."),
    ]


def test_it_calls_what_it_must(talk: Talk) -> None:
    """Its script has an answer here; the grammar does not."""
    prompt = talk.prompt([user(GREETING)], tools=[TOOL], tool_choice=ToolChoice(mode="required"))
    for seed in range(8):
        deltas = talk.say(prompt, temperature=1.0, seed=seed)
        if talk.reason == "stop":
            start, arguments, end = deltas[-3:]
            assert (start, end) == (CallStart("weather"), CallEnd())
            assert isinstance(arguments, CallDelta)
            assert arguments.text.startswith("{")
            break
    else:
        pytest.fail("no call came to its end")


def test_its_answer_has_the_format_whatever_it_wanted_to_say(talk: Talk) -> None:
    schema = {"enum": ["yes", "no"]}
    prompt = talk.prompt([user(GREETING)], format=TextFormat(type="json_schema", schema=schema))
    deltas = talk.say(prompt)
    assert talk.reason == "stop"
    assert deltas[0] == ReasoningDelta("A greeting is wanted.")
    assert deltas[-1] in (TextDelta('"yes"'), TextDelta('"no"'))


def test_a_cut_answer_is_told_as_far_as_it_came(talk: Talk) -> None:
    assert talk.say(talk.prompt([user(GREETING)]), max_tokens=6) == [ReasoningDelta("A greeting is")]
    assert talk.reason == "length"


def test_random_words_of_a_model_never_break_the_reading(talk: Talk) -> None:
    prompt = talk.prompt([user(QUESTION)], tools=[TOOL])
    for seed in range(3):
        talk.say(Prompt(token_ids=prompt.token_ids, stop_ids=prompt.stop_ids), temperature=2.0, seed=seed)
