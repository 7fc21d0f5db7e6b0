"""Tools for a model whose chat template writes none (Gemma 2's, which has no system message either)."""

import json
import random
from dataclasses import replace

from server.model_formats.model_format import CallStart, PromptConversation
from server.protocol.responses.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
)
from server.protocol.responses.tools import ToolChoice
from tests.support.families import CLOCK, PATCH, WEATHER, format_of, ids_of, shown, tokenizer_at
from tests.support.walks import compiler_of, hints_of, walk

NAME = "gemma2"
USER = Message("msg_1", "completed", "user", [InputText("Is it raining?")])
CALL = FunctionCall("fc_1", "completed", "call_1", "get_weather", '{"city": "Paris"}')
RESULT = FunctionCallOutput("fco_1", "completed", "call_1", "It rains.")
WRITTEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOLS = (WEATHER, CLOCK, PATCH)


def conversation(*items: Item, mode: str = "auto", **more: object) -> PromptConversation:
    return PromptConversation(
        items=items,
        tools=TOOLS,
        tool_choice=ToolChoice(mode=mode),  # type: ignore[arg-type]
        instructions="Be brief.",
        **more,  # type: ignore[arg-type]
    )


def written(*items: Item) -> str:
    prompt = format_of(NAME).write(conversation(*items))
    text: str = tokenizer_at(NAME).decode(list(prompt.token_ids), skip_special_tokens=False)
    return text


def test_the_tools_are_described_with_their_schemas_and_how_they_are_called() -> None:
    text = written(USER)
    assert text.index("Be brief.") < text.index("<tools>") < text.index("Is it raining?")
    (lines,) = [part.partition("\n</tools>")[0] for part in text.split("<tools>\n")[1:]]
    described = [json.loads(line) for line in lines.splitlines()]
    assert [tool["name"] for tool in described] == ["get_weather", "get_time", "patch"]
    assert described[0]["parameters"] == WEATHER.parameters
    assert '<tool_call>\n{"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}\n</tool_call>' in text


def test_calls_and_results_in_the_history_are_written_as_texts() -> None:
    comment = Message("msg_2", "completed", "assistant", [OutputText("I look.")])
    text = written(USER, comment, CALL, RESULT)
    assert f"I look.{WRITTEN}" in text
    assert text.index(WRITTEN) < text.index("<tool_response>\nIt rains.\n</tool_response>")
    assert text.count("<start_of_turn>user") == 2


def test_what_the_prompt_says_of_calls_is_read_as_calls_streamed_and_whole() -> None:
    prompt = format_of(NAME).write(conversation(USER))
    output = ids_of(NAME, f"I look.\n{WRITTEN}\n{WRITTEN}")
    whole, single = format_of(NAME).parser(prompt), format_of(NAME).parser(prompt)
    deltas = whole.feed(output) + whole.close()
    split = [delta for token in output for delta in single.feed([token])] + single.close()
    call = ["function get_weather", '{"city": "Paris"}', "end"]
    assert shown(deltas) == shown(split) == ["text I look.", *call, *call]


def test_a_forced_call_is_one_of_these_calls() -> None:
    compiler = compiler_of(NAME)
    prompt = format_of(NAME).write(conversation(USER, mode="required"))
    assert prompt.grammar is not None
    for seed in range(3):
        tokens = walk(compiler, prompt.grammar, random.Random(seed), hints_of(NAME))
        parser = format_of(NAME).parser(prompt)
        starts = [d for d in parser.feed(tokens) + parser.close() if isinstance(d, CallStart)]
        assert starts
        assert {start.name for start in starts} <= {tool.name for tool in TOOLS}


def test_without_tools_nothing_is_described() -> None:
    prompt = format_of(NAME).write(replace(conversation(USER), tools=()))
    assert "<tools>" not in tokenizer_at(NAME).decode(list(prompt.token_ids))
