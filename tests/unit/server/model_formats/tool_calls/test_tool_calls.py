"""Each family's calls as documented: what the model writes, and what is told of it."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.request import StructuredOutput
from server.model_formats.chat_template.chat_output_parser import read_answer
from server.model_formats.model_format import CallStart, Delta, Prompt, PromptTool, TextDelta, merge_deltas
from server.model_formats.select_format import load_model_format
from server.model_formats.special_tokens import Markup
from server.model_formats.text_scanner import Scanner, TextEmitter
from server.model_formats.tool_calls.format_table import TOOL_CALL_FORMATS, detect_tool_call_format
from server.model_formats.tool_calls.tool_call_format import ToolCallEmitter
from server.model_formats.tool_names import ToolIndex
from tests.support.families import (
    CALLERS,
    CLOCK,
    THINKERS,
    TOOLS,
    WEATHER,
    folder_of,
    format_of,
    ids_of,
    shown,
)
from tests.support.family_formats import FAMILIES

ARGUMENTS = '{"city": "Paris", "days": 2}'
LED = [name for name in CALLERS if name not in ("llama3_json", "xlam")]
"""Those whose calls may come after text."""
JSON = [name for name in CALLERS if ARGUMENTS in FAMILIES[name].call]


def prompt(tools: Sequence[PromptTool] = TOOLS, *, opened: bool = False) -> Prompt:
    return Prompt(token_ids=(), stop_ids=frozenset(), tools=tools, opens_reasoning=opened)


def read(name: str, text: str, tools: Sequence[PromptTool] = TOOLS, *, opened: bool = False) -> list[Delta]:
    parser = format_of(name).parser(prompt(tools, opened=opened))
    return [delta for token in ids_of(name, text) for delta in parser.feed([token])] + parser.close()


def call(name: str) -> list[str]:
    start = f"function get_weather {FAMILIES[name].call_id or ''}".strip()
    return [start, ARGUMENTS, "end"]


@pytest.mark.parametrize("name", CALLERS)
def test_the_template_shows_the_format(name: str) -> None:
    template = (folder_of(name) / "chat_template.jinja").read_text()
    assert detect_tool_call_format(template, None) is TOOL_CALL_FORMATS[name]


def test_a_template_without_signs_leaves_it_to_the_type() -> None:
    assert detect_tool_call_format("{{ tools }}", "qwen3") is TOOL_CALL_FORMATS["hermes"]
    assert detect_tool_call_format("{{ tools }}", "bert") is None
    assert detect_tool_call_format("{{ tools }}", None) is None


def test_the_format_can_be_named() -> None:
    named = load_model_format(folder_of("hermes"), frozenset(), tool_parser="qwen3_coder")
    parser = named.parser(prompt())
    deltas = parser.feed(ids_of("hermes", FAMILIES["qwen3_coder"].call)) + parser.close()
    assert shown(deltas) == ["function get_weather", ARGUMENTS, "end"]


def test_a_format_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"'hermse'.*glm45, glm47, granite, granite_20b, hermes"):
        load_model_format(folder_of("hermes"), frozenset(), tool_parser="hermse")


@pytest.mark.parametrize("name", CALLERS)
def test_a_call_is_told_with_its_arguments(name: str) -> None:
    assert shown(read(name, FAMILIES[name].call + FAMILIES[name].eos)) == call(name)


@pytest.mark.parametrize("name", LED)
def test_text_around_calls_is_kept_and_the_blanks_between_are_not(name: str) -> None:
    deltas = shown(read(name, f"Let me  see. \n{FAMILIES[name].two}\n Bye. {FAMILIES[name].eos}"))
    assert [re.sub(r"^(function \w+) .*", r"\1", delta) for delta in deltas] == [
        "text Let me  see.",
        *("function get_weather", ARGUMENTS, "end"),
        *("function get_time", "{}", "end"),
        "text Bye. ",
    ]


@pytest.mark.parametrize("name", CALLERS)
def test_the_input_of_a_custom_tool_is_told_as_it_is(name: str) -> None:
    deltas = shown(read(name, FAMILIES[name].patch))
    assert deltas[0].startswith("custom patch")
    assert deltas[1:] == ['a "b"\nc', "end"]


@pytest.mark.parametrize("name", THINKERS)
@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_comes_before_a_call(name: str, opened: bool) -> None:
    family = FAMILIES[name]
    text = f"{'' if opened else family.open}I look.{family.close}{family.call}{family.eos}"
    assert shown(read(name, text, opened=opened)) == ["thought I look.", *call(name)]


@pytest.mark.parametrize("name", CALLERS)
def test_arguments_are_told_as_they_come(name: str) -> None:
    parser = format_of(name).parser(prompt())
    tokens = ids_of(name, FAMILIES[name].patch.replace("a ", "zyxwvuts "))
    words = [word for token in tokens for word in shown(parser.feed([token]))]
    told = [word for word in words if not word.startswith("custom") and word != "end"]
    assert len(told) >= 8
    assert "".join(told) == 'zyxwvuts "b"\nc'


@pytest.mark.parametrize("name", sorted({*CALLERS} - {"functionary_v32"}))
def test_a_call_of_an_unknown_tool_is_a_call(name: str) -> None:
    deltas = shown(read(name, FAMILIES[name].call + FAMILIES[name].eos, tools=[TOOLS[1]]))
    assert deltas == call(name)


@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("offered", ["city__get_weather", "W-get_weather", "city.get_weather"])
def test_a_name_without_its_prefix_is_taken_for_the_only_tool_that_has_it(name: str, offered: str) -> None:
    tools = [replace(WEATHER, name=offered), CLOCK]
    (start,) = [one for one in read(name, FAMILIES[name].call, tools) if isinstance(one, CallStart)]
    assert (start.name, start.namespace) == (offered, None)


@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("said", ["city__get_weather", "city-get_weather", "city.get_weather"])
def test_a_name_with_its_label_is_taken_for_the_tool_that_is_offered_without(name: str, said: str) -> None:
    tools = [replace(WEATHER, namespace="city", hosted=True, prefixed=False), CLOCK]
    text = FAMILIES[name].call.replace("get_weather", said)
    (start,) = [one for one in read(name, text, tools) if isinstance(one, CallStart)]
    assert (start.name, start.namespace) == ("get_weather", "city")


def test_a_name_that_two_tools_end_in_is_taken_for_neither() -> None:
    tools = [replace(WEATHER, name="a-get_weather"), replace(WEATHER, name="b-get_weather")]
    assert shown(read("hermes", FAMILIES["hermes"].call, tools))[0] == "function get_weather"


@pytest.mark.parametrize("name", CALLERS)
def test_where_a_grammar_allows_only_offered_tools_another_name_is_text(name: str) -> None:
    bound = replace(prompt([CLOCK]), grammar=StructuredOutput(kind="lark", text="start: /.*/"))
    parser = format_of(name).parser(bound)
    words = shown(parser.feed(ids_of(name, FAMILIES[name].call)) + parser.close())
    assert all(word.startswith("text") for word in words), words


@pytest.mark.parametrize("name", CALLERS)
def test_of_a_call_that_must_come_no_markup_is_shown_where_it_is_cut_off(name: str) -> None:
    ids = ids_of(name, FAMILIES[name].two)
    for size in range(len(ids)):
        parser = format_of(name).parser(replace(prompt(), must_call=True))
        words = shown(parser.feed(ids[:size]) + parser.close())
        assert not any(word.startswith("text") for word in words), (size, words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'I look. {"name": "get_time", "parameters": {}} Done.',
            ["text I look.", "function get_time", "{}", "end", "text Done."],
        ),
        (
            'Now:\n\n{"name": "tell", "parameters": {"a": 1}}',
            ["text Now:", "function tell", '{"a": 1}', "end"],
        ),
        (
            'So {"a": 1} {"name": "get_time"}',
            ['text So {"a": 1}', "function get_time", "{}", "end"],
        ),
    ],
)
def test_a_llama_call_behind_text_is_a_call(text: str, words: list[str]) -> None:
    assert shown(read("llama3_json", text)) == words


@pytest.mark.parametrize(
    "text",
    [
        'A person is {"name": "Bob", "age": 3}, say.',
        'A person is {"name": "Bob", "arguments": {}}.',
        'A tool is {"tool": {"name": "get_time", "parameters": {}}}.',
        'A schema has {"name": "Bob", "parameters": "none"}.',
        '{"tools": [{"name": "get_time", "parameters": {}}]}',
        '{"name": "Bob"}',
        "if (x) { return {}; } else { f({a: 1}) }",
    ],
)
def test_ordinary_json_in_an_answer_of_llama_is_text(text: str) -> None:
    assert shown(read("llama3_json", text)) == [f"text {text}"]


@pytest.mark.parametrize("text", ["[link](http://a/)", "[see (1)]", "[1, 2]", "[a(b)]", "[f() and g()]"])
def test_a_list_in_an_answer_of_a_pythonic_model_is_text(text: str) -> None:
    assert shown(read("pythonic", text)) == [f"text {text}"]


@pytest.mark.parametrize("name", CALLERS)
def test_without_tools_a_call_is_text(name: str) -> None:
    deltas = read(name, FAMILIES[name].call, tools=[])
    assert [type(delta) for delta in deltas if not isinstance(delta, TextDelta)] == []


@pytest.mark.parametrize("name", CALLERS)
def test_a_call_that_is_cut_off_has_no_end_or_is_text(name: str) -> None:
    ids = ids_of(name, FAMILIES[name].call)
    for size in range(len(ids)):
        parser = format_of(name).parser(prompt())
        words = shown(parser.feed(ids[:size]) + parser.close())
        if words and words[0].startswith("function"):
            assert "end" not in words or "".join(words[1 : words.index("end")]) == ARGUMENTS
            assert not any(word.startswith("text") for word in words), words
        else:
            assert len(words) <= 1
    assert "end" in shown(format_of(name).parser(prompt()).feed(ids))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("hermes", "<tool_call>oops</tool_call>!", ["text <tool_call>oops</tool_call>!"]),
        ("hermes", "<tool_call>\n{}\n</tool_call>", ["text <tool_call>\n{}\n</tool_call>"]),
        (
            "hermes",
            '<tool_call>x<tool_call>{"name": "get_time"}</tool_call>',
            ["text <tool_call>x", "function get_time", "{}", "end"],
        ),
        (
            "hermes",
            '<tool_call>{"arguments": {"a": [1, "}"]}, "name": "get_time"}</tool_call>',
            ["function get_time", '{"a": [1, "}"]}', "end"],
        ),
        (
            "hermes",
            '<tool_call>{"name": "get_time", "arguments": "{\\"a\\": \\"\\u00e9\\\\n\\"}"}</tool_call>',
            ["function get_time", '{"a": "é\\n"}', "end"],
        ),
        (
            "hermes",
            '<tool_call>{"name": "get_time", "arguments": {"a": 1, "b": </tool_call> well',
            ["function get_time", '{"a": 1, "b": ', "text well"],
        ),
        (
            "hermes",
            '<tool_call>{"name": "get_time", "arguments": {"a": 1, "b": two}}',
            ["function get_time", '{"a": 1, "b": ', "text two}}"],
        ),
        (
            "hermes",
            '<tool_call>{"name": "get_time", "arguments": {"a": [True, None,], "b": 1.5e3,}}</tool_call>',
            ["function get_time", '{"a": [true, null], "b": 1.5e3}', "end"],
        ),
        (
            "hermes",
            '<tool_call>{"name": "get_time", "arguments": {"a\n": "C:\\Pa\\n"}}</tool_call>',
            ["function get_time", '{"a\\n": "C:\\\\Pa\\n"}', "end"],
        ),
        (
            "hermes",
            '<tool_call>{"name": "get_time", "arguments": "noon"}</tool_call>',
            ['text <tool_call>{"name": "get_time", "arguments": "noon"}</tool_call>'],
        ),
        (
            "jamba",
            '<tool_calls>[{"name": "get_time", "arguments": ""}, {"name": "get_time", "parameters": null}]',
            ["function get_time", "{}", "end", "function get_time", "{}", "end"],
        ),
        (
            "hermes",
            '<tool_call>{"name": "get_time"}\n{"name": "get_time"}</tool_call>',
            ["function get_time", "{}", "end", "function get_time", "{}", "end"],
        ),
        ("hermes", '<tool_call>{"name": "get_weather", "argu', ["function get_weather"]),
        ("apertus", "<|tools_prefix|>[]<|tools_suffix|>", ["text <|tools_prefix|>[]"]),
        ("command_r", "Action: take the bus.", ["text Action: take the bus."]),
        ("gigachat3", "A function call<|role_sep|>\nand", ["text A function call<|role_sep|>\nand"]),
        ("functionary", "Write <function=x> or so.", ["text Write <function=x> or so."]),
        ("solar", "<|content|>Yes.<|end|>", ["text Yes."]),
        (
            "solar",
            "<|think|>I look.<|end|><|begin|>assistant<|content|>Yes.<|end|>",
            ["thought I look.", "text Yes."],
        ),
        ("functionary_v32", "all\nYes.", ["text Yes."]),
        ("functionary_v32", "all in all\nso", ["text all in all\nso"]),
        (
            "functionary_v32",
            "all\nI look.\n>>>get_time\n{}>>>all\nNoon.",
            ["text I look.", "function get_time", "{}", "end", "text Noon."],
        ),
        ("functionary_v32", '>>> x\n{"a": 1}', ['text >>> x\n{"a": 1}']),
        ("functionary_v32", "get_time\n{}", ["function get_time", "{}", "end"]),
        ("hermes", "a < b <tool", ["text a < b <tool"]),
        ("llama3_json", '{"city": "Paris"}', ['text {"city": "Paris"}']),
        ("llama3_json", ' {"type": "function", "name": "get_time"}', ["function get_time", "{}", "end"]),
        ("pythonic", "[1, 2]", ["text [1, 2]"]),
        (
            "hermes",
            '<tool_call>{"name": "get_time", "argu w w "city": {"days": 2}}</tool_call>',
            ['text <tool_call>{"name": "get_time", "argu w w "city": {"days": 2}}</tool_call>'],
        ),
        (
            "jamba",
            '<tool_calls>[{"name": "get_time", "arguments": {}, "id": "a w w',
            ["function get_time", "{}", "end", 'text , "id": "a w w'],
        ),
        (
            "hermes",
            '<tool_call>{"name": "patch", "arguments": {"input": "a", "why": "b"}}</tool_call>!',
            ["custom patch", "a", "end", 'text "why": "b"\n!'],
        ),
        (
            "pythonic",
            "[get_weather(city=Pa ris)] no",
            ["function get_weather", '{"city": ', "text Pa ris)] no"],
        ),
        (
            "functiongemma",
            "<start_function_call>call:get_time{a:some text",
            ["function get_time", '{"a": "some text'],
        ),
        ("pythonic", "[get_time(1)]", ["function get_time", "{", "text 1)]"]),
        (
            "pythonic",
            "[get_time(a=[True, None, -1.5e3], b={'x': (1, 'y')}, c=\"\\u00e9\\x41\\/\")]",
            ["function get_time", '{"a": [true, null, -1.5e3], "b": {"x": [1, "y"]}, "c": "éA/"}', "end"],
        ),
        (
            "qwen3_coder",
            (
                "<function=get_weather>\n<parameter=city>\n\na\n\n</parameter>\n"
                "<parameter=days>\nsoon\n</parameter>\n"
                "<parameter=more>\n[1,\n2]\n</parameter>\n</function>"
            ),
            ["function get_weather", '{"city": "\\na\\n", "days": "soon", "more": [1,\n2]}', "end"],
        ),
        (
            "glm45",
            (
                "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value></arg_value>\n<arg_key>days</arg_key>"
                "<arg_value>True</arg_value></tool_call>"
            ),
            ["function get_weather", '{"city": "", "days": "True"}', "end"],
        ),
        (
            "functiongemma",
            (
                "<start_function_call>call:get_time{a:[1,{b:<escape>x,}<escape>}],c:true,d:some text}"
                "<end_function_call>"
            ),
            ["function get_time", '{"a": [1, {"b": "x,}"}], "c": true, "d": "some text"}', "end"],
        ),
        (
            "mistral_v11",
            '[TOOL_CALLS][{"name": "get_time", "arguments": {}}]',
            ["function get_time", "{}", "end"],
        ),
        ("granite", "<response>Yes.</response>", ["text Yes."]),
    ],
)
def test_what_is_unusual_or_broken_is_read_as_far_as_it_makes_sense(
    name: str, text: str, words: list[str]
) -> None:
    assert shown(read(name, text)) == words


@pytest.mark.parametrize("name", JSON)
def test_arguments_that_are_no_json_are_text(name: str) -> None:
    text = FAMILIES[name].call.replace('"Paris"', "Paris")
    assert text != FAMILIES[name].call
    words = shown(read(name, text))
    assert [word.partition(" ")[0] for word in words] == ["text"]
    assert "Paris" in words[0]


@pytest.mark.parametrize("name", JSON)
def test_arguments_that_are_null_are_none(name: str) -> None:
    text = FAMILIES[name].call.replace(ARGUMENTS, "null")
    assert shown(read(name, text)) == [call(name)[0], "{}", "end"]


def test_a_marker_that_is_only_spelled_is_text() -> None:
    text = FAMILIES["mistral"].call
    parser = format_of("mistral").parser(prompt())
    spelled = [token for letter in text for token in ids_of("mistral", letter)]
    assert shown(parser.feed(spelled) + parser.close()) == [f"text {text}"]


def test_a_special_token_that_opens_a_call_ends_the_reasoning() -> None:
    text = f"[THINK]I look.{FAMILIES['mistral_v11'].call}"
    assert shown(read("mistral_v11", text)) == ["thought I look.", *call("mistral_v11")]


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "minimax_m2", "deepseek_v32", "deepseek_v4"])
def test_a_special_token_within_a_value_is_no_part_of_it(name: str) -> None:
    """Tokenizers differ in which marks of a format are special tokens of theirs."""
    marks = FAMILIES[name].plain.split()
    markup = Markup({mark: token for token, mark in enumerate(marks)})
    family = TOOL_CALL_FORMATS[name].with_signs(markup)
    scanner = Scanner()
    answer = TextEmitter(scanner, "answer", markup.clean)
    emitter = ToolCallEmitter(scanner, ToolIndex(TOOLS))
    text = markup.sign(FAMILIES[name].call.replace("Paris", f"Pa{marks[2]}ris"))
    scanner.feed(text, ())
    scanner.ended = True
    assert not list(read_answer(scanner, family, emitter, answer))
    assert shown(merge_deltas(scanner.take_deltas())) == ["function get_weather", ARGUMENTS, "end"]


def test_tools_of_one_name_in_two_groups_are_told_apart() -> None:
    tools = [PromptTool(name="find", namespace="mail"), PromptTool(name="find", namespace="files")]
    text = '<tool_call>\n{"name": "files__find", "arguments": {}}\n</tool_call>'
    assert read("hermes", text, tools)[0] == CallStart("find", None, "function", "files")


def test_a_call_whose_name_is_repeated_behind_its_arguments_is_one_call() -> None:
    text = (
        f'<tool_call>{{"arguments": {ARGUMENTS}, "name": "get_weather", "name": "get_weather"}}</tool_call>'
    )
    assert shown(read("hermes", text)) == ["function get_weather", ARGUMENTS, "end"]


def test_what_is_held_back_has_a_bound() -> None:
    parser = format_of("hermes").parser(prompt())
    deltas = parser.feed(ids_of("hermes", '<tool_call>{"description": "' + "long " * 2_000))
    assert deltas
    assert isinstance(deltas[0], TextDelta)
