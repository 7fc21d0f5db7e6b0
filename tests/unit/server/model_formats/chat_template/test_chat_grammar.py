"""Whatever a grammar lets a model write, the same family's parser reads as what was asked for."""

import json
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.grammar.compiler import GrammarCompiler
from engine.request import StructuredOutput
from server.configuration.shipped_files import demo_model_folder
from server.model_formats.model_format import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    Prompt,
    PromptConversation,
    PromptError,
    PromptTool,
    TextDelta,
)
from server.model_formats.select_format import load_model_format
from server.model_formats.tool_calls.format_table import TOOL_CALL_FORMATS
from server.protocol.responses.items import InputText, Message
from server.protocol.responses.request import Effort, TextFormat
from server.protocol.responses.tools import ToolChoice
from tests.support.families import (
    CALLERS,
    CLOCK,
    GRAMMAR_CALLERS,
    PATCH,
    THINKERS,
    WEATHER,
    format_of,
    ids_of,
)
from tests.support.family_formats import FAMILIES
from tests.support.walks import compiler_of, hints_of, walk

WALKS = 200 if os.environ.get("FAULT_ROUNDS") else 12
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"type": "string", "enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}},
            "required": ["x", "y"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "days", "units", "tags", "where"],
    "additionalProperties": False,
}
STRICT = PromptTool(name="strict", strict=True, parameters=PLACE)
PATTERN = PromptTool(name="pattern", kind="custom", syntax="regex", definition=r'[a-z]{2,5}"\d+/x')
LINES = 'start: "begin\\n" line+ "end \\"x\\""\nline: /[^\\n<>]{1,6}/ "\\n"\n'
GRAMMAR = PromptTool(name="grammar", kind="custom", syntax="lark", definition=LINES)
ALL = [WEATHER, CLOCK, PATCH, STRICT, PATTERN, GRAMMAR]
LEADS = {name: calls.prefix for name, calls in TOOL_CALL_FORMATS.items()}
USER = Message("1", "completed", "user", [InputText("hi")])


@pytest.fixture(params=GRAMMAR_CALLERS)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def compiler(family: str) -> GrammarCompiler:
    return compiler_of(family)


def said(family: str, compiler: GrammarCompiler, prompt: Prompt, seed: int, begin: str = "") -> list[Delta]:
    """What a parser reads of a random output that the prompt's grammar allows."""
    assert prompt.grammar is not None
    first = ids_of(family, begin)
    tokens = walk(compiler, prompt.grammar, random.Random(seed), hints_of(family), first)
    parser = format_of(family).parser(prompt)
    return parser.feed(tokens) + parser.close()


def calls_of(deltas: Sequence[Delta]) -> list[tuple[CallStart, str]]:
    """The calls with their arguments. All of them were ended."""
    calls: list[tuple[CallStart, str]] = []
    ended = 0
    for delta in deltas:
        match delta:
            case CallStart():
                calls.append((delta, ""))
            case CallDelta(text):
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
            case CallEnd():
                ended += 1
    assert ended == len(calls)
    return calls


def check_call(start: CallStart, arguments: str, compiler: GrammarCompiler) -> None:
    match start.name:
        case "pattern":
            check_fits(compiler, StructuredOutput(kind="regex", text=PATTERN.definition), arguments)
        case "grammar":
            check_fits(compiler, StructuredOutput(kind="lark", text=LINES), arguments)
        case "strict":
            value = json.loads(arguments)
            assert list(value) == list(PLACE["properties"])  # type: ignore[call-overload]
            assert isinstance(value["city"], str)
            assert type(value["days"]) is int
            assert value["units"] in ("C", "F")
            assert all(isinstance(tag, str) for tag in value["tags"])
            assert isinstance(value["where"]["x"], int | float)
            assert value["where"]["y"] in (True, False, None)
        case "get_weather" | "get_time":
            assert isinstance(json.loads(arguments), dict)


def check_fits(compiler: GrammarCompiler, grammar: StructuredOutput, text: str) -> None:
    matcher: Any = compiler.compiled(grammar).begin()
    letters = {token: place for place, token in enumerate(compiler.vocabulary.tokens) if len(token) == 1}
    for byte in text.encode():
        assert matcher.consume_token(letters[bytes([byte])]), text
    assert matcher.is_accepting(), text


@pytest.mark.faults
def test_a_required_call_is_always_a_legal_call(family: str, compiler: GrammarCompiler) -> None:
    random_ = random.Random(family)
    for seed in range(WALKS):
        tools = random_.sample(ALL, random_.randint(1, len(ALL)))
        allowed = tuple(tool.name for tool in tools[: random_.randint(1, len(tools))])
        choice = ToolChoice(mode="required", parallel=seed % 2 == 0, allowed=allowed if seed % 3 else None)
        prompt = format_of(family).write(
            PromptConversation(
                items=[USER],
                tools=tools,
                tool_choice=choice,
                reasoning_effort=random_.choice([None, "none", "high"]),
            )
        )
        deltas = said(family, compiler, prompt, seed)
        calls = calls_of(deltas)
        assert calls
        assert not any(isinstance(delta, TextDelta) for delta in deltas)
        assert choice.parallel or len(calls) == 1
        for start, arguments in calls:
            assert choice.allowed is None or start.name in choice.allowed
            check_call(start, arguments, compiler)


def test_a_call_that_need_not_be_is_legal_if_it_is(family: str, compiler: GrammarCompiler) -> None:
    made = 0
    for seed in range(16):
        choice = ToolChoice(parallel=seed % 2 == 0)
        prompt = format_of(family).write(PromptConversation(items=[USER], tools=ALL, tool_choice=choice))
        begin = (
            f"{FAMILIES[family].close if prompt.opens_reasoning else ''}{LEADS[family]}" if seed % 3 else ""
        )
        calls = calls_of(said(family, compiler, prompt, seed, begin))
        made += len(calls)
        assert choice.parallel or len(calls) <= 1
        for start, arguments in calls:
            check_call(start, arguments, compiler)
    assert made


def test_with_none_nothing_is_a_call_and_no_call_is_written(family: str, compiler: GrammarCompiler) -> None:
    choice = ToolChoice(mode="none")
    prompt = format_of(family).write(PromptConversation(items=[USER], tools=ALL, tool_choice=choice))
    assert not prompt.tools
    if prompt.grammar is None:
        assert family in ("llama3_json", "pythonic", "xlam")  # a call is written there as other text is
        return
    for seed in range(10):
        deltas = said(family, compiler, replace(prompt, tools=ALL), seed)
        assert not calls_of(deltas)


def test_an_answer_in_a_format_is_json_behind_the_reasoning(family: str, compiler: GrammarCompiler) -> None:
    for seed in range(16):
        wanted = TextFormat(type="json_schema", schema=PLACE) if seed % 2 else TextFormat(type="json_object")
        effort: Any = ("none", "high", None)[seed % 3]
        prompt = format_of(family).write(
            PromptConversation(items=[USER], format=wanted, reasoning_effort=effort)
        )
        deltas = said(family, compiler, prompt, seed)
        value = json.loads("".join(delta.text for delta in deltas if isinstance(delta, TextDelta)))
        assert isinstance(value, dict)
        assert seed % 2 == 0 or value.keys() == PLACE["properties"].keys()  # type: ignore[attr-defined]


def test_an_answer_in_a_format_or_calls_where_there_are_tools(family: str, compiler: GrammarCompiler) -> None:
    wanted = TextFormat(type="json_schema", schema={"const": {"answer": 1}})
    prompt = format_of(family).write(PromptConversation(items=[USER], tools=[STRICT], format=wanted))
    kinds = set()
    for seed in range(16):
        deltas = said(family, compiler, prompt, seed)
        text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        calls = calls_of(deltas)
        assert bool(text) != bool(calls)
        assert not text or json.loads(text) == {"answer": 1}
        kinds.add(bool(text))
    assert kinds == {True, False}


@pytest.mark.parametrize("name", CALLERS)
def test_where_nothing_is_asked_there_is_no_grammar(name: str) -> None:
    assert (
        format_of(name).write(PromptConversation(items=[USER], tools=[WEATHER, CLOCK, PATCH])).grammar is None
    )
    assert format_of(name).write(PromptConversation(items=[USER])).grammar is None


@pytest.mark.parametrize("name", THINKERS)
def test_a_model_that_reasons_may_do_so_before_a_required_call(name: str) -> None:
    choice = ToolChoice(mode="required")
    prompt = format_of(name).write(
        PromptConversation(items=[USER], tools=[WEATHER], tool_choice=choice, reasoning_effort="high")
    )
    assert prompt.grammar is not None
    assert any(word in prompt.grammar.text for word in ("until_", "TEXT?"))


@pytest.mark.parametrize(("effort", "reasons"), [(None, False), ("low", True)])
def test_where_the_template_would_open_the_reasoning_a_model_that_was_not_asked_does_not(
    effort: Effort | None, reasons: bool
) -> None:
    demo = load_model_format(demo_model_folder(), frozenset())
    prompt = demo.write(
        PromptConversation(
            items=[USER], tools=[WEATHER], tool_choice=ToolChoice(mode="required"), reasoning_effort=effort
        )
    )
    assert prompt.grammar is not None
    assert ("</think>" in prompt.grammar.text) == reasons


@pytest.mark.parametrize(
    ("conversation", "param"),
    [
        (PromptConversation(items=[USER], tool_choice=ToolChoice(mode="required")), "tool_choice"),
        (
            PromptConversation(items=[USER], tools=[CLOCK], tool_choice=ToolChoice(allowed=("other",))),
            "tool_choice",
        ),
        (PromptConversation(items=[USER], tools=[CLOCK, CLOCK]), "tools"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_its_parameter(
    conversation: PromptConversation, param: str
) -> None:
    with pytest.raises(PromptError) as refusal:
        format_of("hermes").write(conversation)
    assert refusal.value.param == param
