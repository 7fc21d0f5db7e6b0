"""What gpt-oss may write: thoughts and plans, then a legal answer or a legal call, and nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest

from engine.grammar.compiler import GrammarCompiler
from engine.request import StructuredOutput
from engine.vocabulary import Vocabulary
from server.model_formats.harmony.vocabulary import TEXT_TOKENS, VOCABULARY
from server.model_formats.model_format import (
    PromptConversation,
    PromptError,
    PromptTool,
)
from server.protocol.responses.items import InputText, Message, OutputText
from server.protocol.responses.request import TextFormat
from server.protocol.responses.tools import ToolChoice
from tests.support.harmony import CONTROL, encoding, harmony_format, ids_of

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
STRICT = PromptTool(name="weather", parameters=WEATHER, strict=True)
SIMPLE = PromptTool(name="later", parameters=WEATHER)
LOOSE = PromptTool(name="now", parameters={"type": "object", "description": "Anything."})
READ = PromptTool(name="read", namespace="files")
FREE = PromptTool(name="patch", kind="custom")
LARK = PromptTool(name="sum", kind="custom", syntax="lark", definition='start: N ("+" N)*\nN: /[0-9]+/')
REGEX = PromptTool(name="path", kind="custom", syntax="regex", definition=r"(/[a-z]+)+\n?")
ALL = (STRICT, LOOSE, READ, FREE, LARK, REGEX)

THINKS = "<|channel|>analysis<|message|>Hm {}<|end|><|start|>assistant"
PLANS = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
CALLS = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}"
ANSWERS = "<|channel|>final<|message|>"
BARE = "Hello"


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    """For the whole vocabulary of gpt-oss."""
    tokens = [*encoding().tokens]
    for name, token in CONTROL.items():
        tokens[token] = name.encode()
    made = GrammarCompiler(Vocabulary(tuple(tokens), frozenset(range(TEXT_TOKENS, VOCABULARY))))
    yield made
    made.close()


def asked(**fields: Any) -> StructuredOutput | None:
    items = [Message("m", "completed", "user", [InputText("Hi")])]
    return harmony_format().write(PromptConversation(items=items, **fields)).grammar


def judge(compiler: GrammarCompiler, grammar: StructuredOutput | None, output: str) -> str:
    """Whether the output is `whole`, `begun` or `wrong`."""
    assert grammar is not None
    matcher = compiler.compiled(grammar).begin()
    tokens = ids_of(output)
    if matcher.try_consume_tokens(tokens) < len(tokens):
        return "wrong"
    return "whole" if matcher.is_accepting() else "begun"


def test_nothing_is_enforced_where_nothing_is_asked_for() -> None:
    assert asked() is None
    assert asked(tools=[LOOSE, FREE, READ]) is None
    assert asked(tools=[LOOSE], tool_choice=ToolChoice(parallel=False)) is None
    assert asked(tool_choice=ToolChoice(mode="none")) is None


def test_a_required_call_is_a_call(compiler: GrammarCompiler) -> None:
    grammar = asked(tools=[LOOSE, STRICT], tool_choice=ToolChoice(mode="required"))
    for before in ("", THINKS, THINKS + PLANS, THINKS + THINKS):
        assert judge(compiler, grammar, before + CALLS.format("now", '{"x":[1]}')) == "whole"
        assert judge(compiler, grammar, before + CALLS.format("weather", '{"city":"Ulm"}')) == "whole"
        assert judge(compiler, grammar, before + CALLS.format("weather", '{"city":')) == "begun"
        assert judge(compiler, grammar, before + CALLS.format("weather", '{"x":1}')) == "wrong"
        assert judge(compiler, grammar, before + CALLS.format("fly", "{}")) == "wrong"
        assert judge(compiler, grammar, before + ANSWERS) == "wrong"
        assert judge(compiler, grammar, before + BARE) == "wrong"
        assert judge(compiler, grammar, before) == "begun"


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "1"),
        ({"$ref": "#/$defs/U"}, '"C"', '"K"'),
        ({"type": "integer", "minimum": 3, "maximum": 8}, "8", "9"),
        ({"type": "string", "maxLength": 3}, '"abc"', '"abcd"'),
        ({"type": "array", "maxItems": 1}, "[1]", "[1,2]"),
        ({"type": "string", "pattern": "^a+$"}, '"aa"', '"ab"'),
        ({"type": "string", "format": "date"}, '"2026-11-22"', '"soon"'),
        ({"oneOf": [{"type": "integer"}, {"const": "no"}]}, '"no"', '"yes"'),
        ({"type": "array", "uniqueItems": True, "items": {"type": "null"}}, "[null,null]", "[1]"),
        ({"type": "boolean", "not": {"const": True}}, "true", '"true"'),
    ],
)
def test_a_required_call_follows_its_schema_as_far_as_that_can_be_enforced(
    compiler: GrammarCompiler, schema: dict[str, Any], right: str, wrong: str
) -> None:
    parameters = {
        "type": "object",
        "properties": {"v": schema},
        "required": ["v"],
        "$defs": {"U": {"enum": ["C", "F"]}},
    }
    tool = PromptTool(name="now", parameters=parameters)
    grammar = asked(tools=[tool], tool_choice=ToolChoice(mode="required", allowed=("now",)))
    assert judge(compiler, grammar, CALLS.format("now", f'{{"v":{right}}}')) == "whole"
    assert judge(compiler, grammar, CALLS.format("now", f'{{"v":{wrong}}}')) == "wrong"
    assert judge(compiler, grammar, CALLS.format("now", "{}")) == "wrong"


def test_a_required_call_of_a_servers_tool_is_chosen_by_its_label(compiler: GrammarCompiler) -> None:
    tool = PromptTool(name="now", namespace="city", hosted=True)
    grammar = asked(tools=[tool, SIMPLE], tool_choice=ToolChoice(mode="required", allowed=("city__now",)))
    call = "<|channel|>commentary to=city.now <|constrain|>json<|message|>{}"
    assert judge(compiler, grammar, call) == "whole"
    assert judge(compiler, grammar, CALLS.format("later", '{"city":"Ulm"}')) == "wrong"


def test_a_required_call_follows_a_simple_schema_that_is_not_strict(compiler: GrammarCompiler) -> None:
    grammar = asked(tools=[SIMPLE], tool_choice=ToolChoice(mode="required"))
    assert judge(compiler, grammar, CALLS.format("later", '{"city":"Ulm"}')) == "whole"
    assert judge(compiler, grammar, CALLS.format("later", '{"x":1}')) == "wrong"
    assert asked(tools=[SIMPLE]) is None


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.now<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.now<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.now<|message|>",
        "<|channel|>commentary to=functions.now<|constrain|>json<|message|>",
    ],
)
def test_a_call_may_have_every_usual_header(compiler: GrammarCompiler, header: str) -> None:
    grammar = asked(tools=[LOOSE], tool_choice=ToolChoice(mode="required"))
    assert judge(compiler, grammar, header + "{}") == "whole"


def test_only_allowed_tools_are_called(compiler: GrammarCompiler) -> None:
    for mode, answer in (("auto", "whole"), ("required", "wrong")):
        choice = ToolChoice(mode=mode, allowed=("now",))  # type: ignore[arg-type]
        grammar = asked(tools=ALL, tool_choice=choice)
        assert judge(compiler, grammar, CALLS.format("now", "{}")) == "whole"
        assert judge(compiler, grammar, CALLS.format("weather", '{"city":"Ulm"}')) == "wrong"
        assert judge(compiler, grammar, THINKS + ANSWERS + "Yes.") == answer


def test_no_tool_is_called_where_none_may_be(compiler: GrammarCompiler) -> None:
    grammar = asked(tools=ALL, tool_choice=ToolChoice(mode="none"))
    assert judge(compiler, grammar, THINKS + ANSWERS + "Yes {}\n") == "whole"
    assert judge(compiler, grammar, CALLS.format("now", "{}")) == "wrong"
    assert judge(compiler, grammar, "<|channel|>analysis to=python code<|message|>1") == "wrong"


def test_a_strict_tool_is_held_to_its_schema_and_answers_are_free(compiler: GrammarCompiler) -> None:
    grammar = asked(tools=[STRICT, LOOSE])
    assert judge(compiler, grammar, CALLS.format("weather", '{"city":"Ulm"}')) == "whole"
    assert judge(compiler, grammar, CALLS.format("weather", "{}")) == "wrong"
    assert judge(compiler, grammar, CALLS.format("now", "{}")) == "whole"
    assert judge(compiler, grammar, ANSWERS + "anything\nat all {") == "whole"
    assert judge(compiler, grammar, ANSWERS) == "whole"


CUSTOM = [
    (LARK, "functions.sum", "1+22", "1+"),
    (REGEX, "functions.path", "/a/b\n", "a"),
    (FREE, "functions.patch", "*** {", None),
]


@pytest.mark.parametrize(("tool", "callee", "right", "wrong"), CUSTOM)
def test_a_tool_that_takes_text_is_held_to_its_grammar(
    compiler: GrammarCompiler, tool: PromptTool, callee: str, right: str, wrong: str | None
) -> None:
    grammar = asked(tools=[tool], tool_choice=ToolChoice(mode="required"))
    for header in (
        f"<|channel|>commentary to={callee}<|message|>",
        f" to={callee}<|channel|>commentary code<|message|>",
    ):
        assert judge(compiler, grammar, header + right) == "whole"
        if wrong is not None:
            assert judge(compiler, grammar, header + wrong) != "whole"


def test_tools_of_a_namespace_are_called_in_it(compiler: GrammarCompiler) -> None:
    grammar = asked(tools=[READ], tool_choice=ToolChoice(mode="required"))
    assert judge(compiler, grammar, "<|channel|>commentary to=files.read json<|message|>{}") == "whole"
    assert judge(compiler, grammar, CALLS.format("read", "{}")) == "wrong"


def test_builtin_tools_are_called_while_thinking(compiler: GrammarCompiler) -> None:
    grammar = asked(
        chat_template_kwargs={"builtin_tools": ["browser", "python"]}, tool_choice=ToolChoice(mode="required")
    )
    for callee in ("python", "browser.search", "browser.open", "browser.find"):
        assert judge(compiler, grammar, f"<|channel|>analysis to={callee} code<|message|>x(1)") == "whole"
    assert judge(compiler, grammar, "<|channel|>analysis to=browser.fly code<|message|>x") == "wrong"


@pytest.mark.parametrize(
    "wanted", [TextFormat(type="json_schema", schema=WEATHER), TextFormat(type="json_object")]
)
def test_only_the_answer_has_the_format(compiler: GrammarCompiler, wanted: TextFormat) -> None:
    grammar = asked(format=wanted)
    for header in (ANSWERS, "<|channel|>final <|constrain|>json<|message|>"):
        assert judge(compiler, grammar, THINKS + PLANS + header + '{"city":"Ulm"}') == "whole"
        assert judge(compiler, grammar, header + "Ulm") == "wrong"
        assert judge(compiler, grammar, header) == "begun"
    assert judge(compiler, grammar, BARE) == "wrong"
    assert judge(compiler, grammar, '{"city":"Ulm"}') == "wrong"
    assert judge(compiler, grammar, CALLS.format("now", "{}")) == "wrong"


def test_a_format_leaves_tools_to_be_called(compiler: GrammarCompiler) -> None:
    grammar = asked(format=TextFormat(type="json_object"), tools=[LOOSE])
    assert judge(compiler, grammar, CALLS.format("now", "{}")) == "whole"
    assert judge(compiler, grammar, ANSWERS + "{}") == "whole"


def test_many_tools_fit_into_a_grammar(compiler: GrammarCompiler) -> None:
    tools = [PromptTool(name=f"{'long_name_' * 6}{n}", parameters=WEATHER, strict=True) for n in range(100)]
    grammar = asked(tools=tools, tool_choice=ToolChoice(mode="required"))
    assert judge(compiler, grammar, CALLS.format(tools[99].name, '{"city":"Ulm"}')) == "whole"


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": ToolChoice(mode="required")},
        {"tools": [LOOSE], "tool_choice": ToolChoice(mode="required", allowed=("fly",))},
    ],
)
def test_a_call_of_nothing_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PromptError) as refused:
        asked(**fields)
    assert refused.value.param == "tool_choice"


def test_what_goes_on_can_have_no_format() -> None:
    items = [Message("m", "completed", "assistant", [OutputText("Once")])]
    with pytest.raises(PromptError):
        harmony_format().write(
            PromptConversation(
                items=items, continue_final_message=True, format=TextFormat(type="json_object")
            )
        )
    assert (
        harmony_format()
        .write(PromptConversation(items=items, continue_final_message=True, tools=[LOOSE]))
        .grammar
        is None
    )
