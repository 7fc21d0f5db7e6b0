"""Calls of elements beyond a flat list of them: nested, typed, in sections; and what stands around calls."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from server.model_formats.model_format import (
    CallDelta,
    Prompt,
    PromptConversation,
    PromptTool,
    TextDelta,
)
from server.protocol.responses.items import FunctionCall, InputText, Message
from server.protocol.responses.tools import ToolChoice
from tests.support.families import TOOLS, format_of, ids_of, shown, tokenizer_at
from tests.support.walks import compiler_of, hints_of, walk

PLAN = PromptTool(
    name="plan",
    strict=True,
    parameters={
        "type": "object",
        "properties": {
            "stops": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                    "required": ["city", "days"],
                    "additionalProperties": False,
                },
            },
            "tags": {"type": "array", "items": {"type": "string"}},
            "options": {"type": "object"},
            "note": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "number"}}]},
            "free": {},
        },
        "additionalProperties": False,
    },
)
MARK = "]<]minimax[>["


def read(name: str, text: str, *, opened: bool = False, tools: Sequence[PromptTool] = (*TOOLS, PLAN)) -> Any:
    """The deltas of the text, which are the same for each of its tokens alone."""
    prompt = Prompt(token_ids=(), stop_ids=frozenset(), tools=tools, opens_reasoning=opened)
    ids = ids_of(name, text)
    whole, single = format_of(name).parser(prompt), format_of(name).parser(prompt)
    deltas = whole.feed(ids) + whole.close()
    assert shown([each for token in ids for each in single.feed([token])] + single.close()) == shown(deltas)
    return shown(deltas)


def planned(arguments: str) -> Any:
    """The arguments of a MiniMax M3 call, whose marks are `~` here."""
    text = f'~<tool_call>\n~<invoke name="plan">{arguments}~</invoke>\n~</tool_call>'
    name, said, end = read("minimax_m3", text.replace("~", MARK))
    assert (name, end) == ("function plan", "end")
    return json.loads(said)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("", {}),
        ("~<tags>~<item>a~</item>~<item>~</item>~</tags>", {"tags": ["a", ""]}),
        ("~<tags>~</tags>~<options>~</options>~<free>~</free>", {"tags": [], "options": {}, "free": ""}),
        (
            "~<stops>\n~<item>~<city>Paris~</city>~<days>2~</days>~</item>\n~</stops>",
            {"stops": [{"city": "Paris", "days": 2}]},
        ),
        (
            "~<options>~<item>1~</item>~<a>~<b>true~</b>~</a>~</options>",
            {"options": {"item": 1, "a": {"b": True}}},
        ),
        ('~<options>{"a": [1, "~<b>"]}~</options>'.replace("~<b>", "<b>"), {"options": {"a": [1, "<b>"]}}),
        ("~<note>~<item>1.5~</item>~</note>", {"note": [1.5]}),
        ("~<note>\n one\n~</note>", {"note": "\n one\n"}),
        ("~<free>~<item>~<x>y~</x>~</item>~</free>", {"free": [{"x": "y"}]}),
        ("~<free>12~</free>", {"free": 12}),
        ("~<tags>~<items>a~</items>~</tags>", {"tags": {"items": "a"}}),
    ],
)
def test_elements_are_nested_as_the_values_are(arguments: str, value: Any) -> None:
    assert planned(arguments) == value


def test_elements_nested_without_end_are_no_call_and_raise_nothing() -> None:
    text = f'{MARK}<tool_call>\n{MARK}<invoke name="plan">' + f"{MARK}<free>" * 400
    assert "end" not in read("minimax_m3", text)


def test_a_grammar_lets_nested_values_be_nested_elements() -> None:
    compiler, chance = compiler_of("minimax_m3"), random.Random(1)
    question = Message("1", "completed", "user", [InputText("hi")])
    choice = ToolChoice(mode="required", parallel=False)
    prompt = format_of("minimax_m3").write(
        PromptConversation(items=[question], tools=[PLAN], tool_choice=choice)
    )
    assert prompt.grammar is not None
    begin = (
        f'{MARK}<tool_call>\n{MARK}<invoke name="plan">{MARK}<stops>{MARK}<item>{MARK}<city>Rome{MARK}</city>'
    )
    for _ in range(10):
        parser = format_of("minimax_m3").parser(prompt)
        hints, first = hints_of("minimax_m3"), ids_of("minimax_m3", begin)
        deltas = parser.feed(walk(compiler, prompt.grammar, chance, hints, first)) + parser.close()
        said = json.loads("".join(each.text for each in deltas if isinstance(each, CallDelta)))
        assert said["stops"][0]["city"] == "Rome"
        assert all(set(stop) == {"city", "days"} for stop in said["stops"])


def test_no_thought_of_minimax_m3_is_an_end_tag_alone() -> None:
    assert read("minimax_m3", "</mm:think>Hello") == ["text Hello"]
    assert read("minimax_m3", "<mm:think>Hm</mm:think>Hello") == ["thought Hm", "text Hello"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<|open|>response<|sep|>Hi<|close|>response<|sep|><|close|>message<|sep|>", ["text Hi"]),
        (
            "Hm<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|><|close|>message<|sep|>",
            ["thought Hm", "text Hi"],
        ),
        ("Hm. No tag", ["thought Hm. No tag"]),
    ],
)
def test_channels_of_kimi_k3_are_reasoning_and_answer(text: str, words: list[str]) -> None:
    assert read("kimi_k3", text, opened=True) == words


def test_the_type_that_kimi_k3_writes_of_an_argument_counts() -> None:
    text = (
        '<|open|>tools<|sep|><|open|>call tool="plan" index="1"<|sep|>'
        '<|open|>argument key="free" type="string"<|sep|>12<|close|>argument<|sep|>'
        '<|open|>argument key="a&quot;b&amp;" type="boolean"<|sep|>true<|close|>argument<|sep|>'
        '<|open|>argument key="tags" type="array"<|sep|>["x"]<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    )
    _, said, _ = read("kimi_k3", text)
    assert json.loads(said) == {"free": "12", 'a"b&': True, "tags": ["x"]}


def test_arguments_of_kimi_k3_may_be_one_object() -> None:
    text = (
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>json type="object"<|sep|>{"city": "Paris"}<|close|>json<|sep|><|close|>call<|sep|>'
    )
    assert read("kimi_k3", text) == ["function get_weather", '{"city": "Paris"}', "end"]


@pytest.mark.parametrize("parallel", [True, False])
def test_an_answer_of_kimi_k3_may_stand_in_its_tags_where_a_grammar_applies(parallel: bool) -> None:
    compiler = compiler_of("kimi_k3")
    question = Message("1", "completed", "user", [InputText("hi")])
    prompt = format_of("kimi_k3").write(
        PromptConversation(items=[question], tools=[PLAN], tool_choice=ToolChoice(parallel=parallel))
    )
    assert prompt.grammar is not None
    begin = (
        "Hm<|close|>think<|sep|><|open|>response<|sep|>Hello<|close|>response<|sep|><|close|>message<|sep|>"
    )
    tokens = walk(compiler, prompt.grammar, random.Random(1), [], ids_of("kimi_k3", begin))
    parser = format_of("kimi_k3").parser(prompt)
    deltas = parser.feed(tokens) + parser.close()
    assert [each.text for each in deltas if isinstance(each, TextDelta)] == ["Hello"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("Paris", "Paris"),
        ("<![CDATA[<b>\n</param>]]>", "<b>\n</param>"),
        ("<![CDATA[]]>\n", ""),
        ("<b> & c", "<b> & c"),
        ("\n\n", "\n\n"),
    ],
)
def test_strings_of_minicpm_may_stand_in_sections(value: str, said: str) -> None:
    city = f'<param name="city">{value}</param>'
    text = f'<function name="get_weather">{city}<param name="days">2</param></function>'
    name, arguments, end = read("minicpm5", text)
    assert (name, end) == ("function get_weather", "end")
    assert json.loads(arguments) == {"city": said, "days": 2}


def test_values_of_seed_oss_keep_their_line_breaks() -> None:
    value = "<parameter=city>\na\n</parameter>"
    text = f"<seed:tool_call>\n<function=get_weather>\n{value}\n</function>\n</seed:tool_call>"
    assert read("seed_oss", text)[1] == '{"city": "\\na\\n"}'


@pytest.mark.parametrize("name", ["seed_oss", "qwen3_coder"])
@pytest.mark.parametrize(
    ("written", "value"),
    [("['x', \"it's\"]", ["x", "it's"]), ('["x"]', ["x"]), ("['x'", "['x'"), ("['x'] y", "['x'] y")],
)
def test_lists_may_be_pythons_as_some_templates_write_them(name: str, written: str, value: Any) -> None:
    text = f"<function=plan>\n<parameter=tags>{written}</parameter>\n</function>"
    assert json.loads(read(name, text)[1]) == {"tags": value}


@pytest.mark.parametrize(
    "text",
    [
        "Write <seed:tool_call> to call.",
        "See [the docs](http://a/b).",
        'Call <function name="x"> so.',
        "Go to=user or to=x, said=y.",
        "Like <function_calls> or\n<tool_calls>, say.",
        'Like <dots_function_call> or <invoke name="a">.',
    ],
)
@pytest.mark.parametrize(
    "name", ["seed_oss", "lfm2", "minicpm5", "muse_glimmer", "olmo3", "dots", "minimax_m1"]
)
def test_a_mark_in_prose_is_prose(name: str, text: str) -> None:
    assert read(name, text) == [f"text {text}"]


def test_calls_of_lfm2_are_written_as_text_where_its_template_writes_none() -> None:
    arguments = '{"city": "it\'s \\"Paris\\"\\n", "days": null, "units": [true, {"a": 1.5}]}'
    made = FunctionCall("f", "completed", "c", "get_weather", arguments)
    question = Message("1", "completed", "user", [InputText("hi")])
    prompt = format_of("lfm2").write(PromptConversation(items=[question, made]))
    text: str = tokenizer_at("lfm2").decode(list(prompt.token_ids), skip_special_tokens=False)
    _, _, written = text.partition("<|tool_call_start|>")
    words = read("lfm2", f"<|tool_call_start|>{written.partition('<|im_end|>')[0]}")
    assert words[::2] == ["function get_weather", "end"]
    assert json.loads(words[1]) == json.loads(arguments)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<|channel>thought<channel|>Hello", ["text Hello"]),
        ("<|channel>thought\n<channel|>Hello<channel|>", ["text Hello"]),
        ("<|channel>thought\n<channel|>Hello<|channel>thought\n<channel|><channel|>", ["text Hello"]),
        ("<|channel><|channel>thought\n<channel|>Hello", ["text Hello"]),
        ("Hello\n<|channel>thought\nHm.\n<channel|>Bye", ["text Hello", "thought Hm.", "text Bye"]),
    ],
)
def test_empty_and_later_channels_of_gemma_do_not_leak(text: str, words: list[str]) -> None:
    assert read("gemma4", text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" to=user<|message|>Hello <|eot|>", ["text Hello "]),
        (
            " to=self<|message|>Like <atem:function_calls>?<|eom|><|start|>assistant to=user<|message|>No.",
            ["thought Like <atem:function_calls>?", "text No."],
        ),
        (
            ' to=user<|message|>So: <atem:function_calls>\n<atem:invoke name="get_time">\n</atem:invoke>',
            ['text So: <atem:function_calls>\n<atem:invoke name="get_time">\n</atem:invoke>'],
        ),
        (
            (
                " to=user<|message|>Wait.<|eom|><|start|>assistant to=self<|message|>Hm.<|eom|>"
                "<|start|>assistant to=get_time<|message|><atem:function_calls>\n"
                '<atem:invoke name="get_time">\n</atem:invoke>\n'
                "</atem:function_calls><|eom|>"
            ),
            ["text Wait.", "thought Hm.", "function get_time", "{}", "end"],
        ),
    ],
)
def test_recipients_of_muse_glimmer_say_what_its_text_is(text: str, words: list[str]) -> None:
    assert read("muse_glimmer", text) == words


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("hyperclovax", "\nHello <|im_end|>", ["text Hello "]),
        ("hyperclovax", "/think\nHm.<|im_end|>\n<|im_start|>assistant\nHello", ["thought Hm.", "text Hello"]),
        (
            "hyperclovax",
            (
                "\nI look.<|im_end|>\n<|im_start|>assistant -> tool/function_call\n"
                '[{"name": "get_time", "arguments": {}}]<|im_end|>'
            ),
            ["text I look.", "function get_time", "{}", "end"],
        ),
        ("hyperclovax", "\nAn -> tool/function_call\n is it.", ["text An -> tool/function_call\n is it."]),
        (
            "llm_jp",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello",
            ["thought Hm.", "text Hello"],
        ),
        (
            "llm_jp",
            (
                "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.get_time"
                "<|channel|>commentary json<|message|>{}<|call|>"
            ),
            ["text I look.", "function get_time", "{}", "end"],
        ),
        ("llm_jp", "<|channel|>final<|message|>Write to=functions.x", ["text Write to=functions.x"]),
        ("openpangu", "[unused16]Hm.[unused17]Hello", ["thought Hm.", "text Hello"]),
    ],
)
def test_answers_and_calls_are_messages_of_their_own(name: str, text: str, words: list[str]) -> None:
    assert read(name, text) == words
