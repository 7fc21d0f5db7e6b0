"""Conversations as each family's template writes them, and what templates cannot write."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.model_formats.model_format import (
    ModelFormat,
    Prompt,
    PromptConversation,
    PromptError,
    PromptTool,
)
from server.model_formats.select_format import load_model_format
from server.model_formats.tool_calls.format_table import TOOL_CALL_FORMATS
from server.model_formats.tool_names import function_schema
from server.protocol.responses.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OtherItem,
    OutputText,
    Reasoning,
    ReasoningText,
    SummaryText,
)
from server.protocol.responses.tools import ToolChoice
from tests.support.families import (
    CALLERS,
    CLOCK,
    PATCH,
    TOOLS,
    WEATHER,
    folder_of,
    format_of,
    ids_of,
    shown,
    tokenizer_at,
)
from tests.support.family_formats import FAMILIES
from tests.unit.server.model_formats.goldens import ARGUMENTS, GOLDEN


def message(role: Any, text: str) -> Message:
    part = OutputText(text) if role == "assistant" else InputText(text)
    return Message("m", "completed", role, [part])


def called(call_id: str, name: str = "get_weather", arguments: str = ARGUMENTS) -> FunctionCall:
    return FunctionCall("f", "completed", call_id, name, arguments)


def output(call_id: str, text: str) -> FunctionCallOutput:
    return FunctionCallOutput("o", "completed", call_id, text)


def write(name: str, *items: Item, **more: Any) -> str:
    prompt = format_of(name).write(PromptConversation(items=items, **more))
    text: str = tokenizer_at(name).decode(list(prompt.token_ids), skip_special_tokens=False)
    return text


ASKED = message("user", "Weather?")
TURN: list[Item] = [
    ASKED,
    Reasoning("r", "completed", [], [ReasoningText("I look.")]),
    called("call_1"),
    output("call_1", "Rain."),
]


@pytest.mark.parametrize("name", CALLERS)
def test_a_call_in_the_history_is_written_as_the_model_writes_it(name: str) -> None:
    """What the model reads of its own call is what its parser would read as that call."""
    text = write(name, *TURN, tools=TOOLS, tool_choice=ToolChoice(mode="auto"))
    assert "Rain." in text
    _, _, after = text.rpartition("Weather?")
    written = TOOL_CALL_FORMATS[name]
    start = min(place for sign in (*written.openers, written.prefix) if (place := after.find(sign)) >= 0)
    parser = format_of(name).parser(Prompt(token_ids=(), stop_ids=frozenset(), tools=TOOLS))
    words = shown(parser.feed(ids_of(name, after[start:])))
    call, arguments, end = [word for word in words if not word.startswith("thought")][:3]
    assert call.split()[:2] == ["function", "get_weather"]
    assert (arguments, end) == (ARGUMENTS, "end")


def test_every_family_that_calls_has_a_golden_turn() -> None:
    assert GOLDEN.keys() == set(CALLERS)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_turn_with_a_call_is_written_exactly_so(name: str) -> None:
    text = write(name, *TURN)
    if name == "mistral":
        own_id = text.partition('"id": "')[2][:9]
        assert own_id.isalnum()
        text = text.replace(own_id, "ID")
    assert text == GOLDEN[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CALLERS, "gemma2"])
def test_prompts_are_those_of_transformers(name: str) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(folder_of(name))
    system = [] if name == "gemma2" else [{"role": "system", "content": "Be brief. 😀"}]
    talk = [
        {"role": "user", "content": "Hello  there,\n\nyou."},
        {"role": "assistant", "content": "Hi <b>you</b>"},
        {"role": "user", "content": "Weather?"},
    ]
    items: list[Item] = [
        message("user", "Hello  there,\n\nyou."),
        message("assistant", "Hi <b>you</b>"),
        ASKED,
    ]
    instructions = "Be brief. 😀" if system else None
    tools = [] if name == "gemma2" else [WEATHER, CLOCK]
    for offered in ([], tools):
        functions: Any = [function_schema(tool.name, tool) for tool in offered] or None
        expected = reference.apply_chat_template(
            [*system, *talk], tools=functions, add_generation_prompt=True, return_dict=False
        )
        prompt = format_of(name).write(
            PromptConversation(items=items, instructions=instructions, tools=offered)
        )
        assert list(prompt.token_ids) == list(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*CALLERS} - {"deepseek_v3", "granite", "lfm2"}))
def test_prompts_with_calls_and_a_continued_message_are_those_of_transformers(name: str) -> None:
    """But Granite's and LFM2's, whose templates write no calls, and DeepSeek V3's, whose null transformers
    takes out.
    """
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(folder_of(name))
    shape = format_of(name)._capabilities
    call_id = {"mistral": "Ab3dEf7hI", "kimi_k2": "functions.get_weather:0"}.get(name, "a")
    arguments = json.loads(ARGUMENTS) if shape.arguments_as_object else ARGUMENTS
    function = {"name": "get_weather", "arguments": arguments}
    talk: list[Any] = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": shape.empty_content,
            "tool_calls": [{"type": "function", "id": call_id, "function": function}],
        },
        {"role": "tool", "content": "Rain.", "name": "get_weather", "tool_call_id": call_id},
        {"role": "assistant", "content": "It will  "},
    ]
    functions: list[Any] = [function_schema(tool.name, tool) for tool in (WEATHER, CLOCK)]
    expected = reference.apply_chat_template(
        talk, tools=functions, continue_final_message=True, return_dict=False
    )
    made, came = called(call_id), output(call_id, "Rain.")
    items: list[Item] = [ASKED, made, came, message("assistant", "It will  ")]
    conversation = PromptConversation(items=items, tools=[WEATHER, CLOCK], continue_final_message=True)
    assert list(format_of(name).write(conversation).token_ids) == list(expected)


@pytest.mark.parametrize("name", CALLERS)
def test_nothing_that_others_write_is_markup(name: str) -> None:
    """Control tokens in words, tools, arguments and outputs: none more than in a prompt without them."""
    family, model_format = FAMILIES[name], format_of(name)
    controls = {tokenizer_at(name).token_to_id(text) for text in family.added}

    def count(evil: str) -> int:
        tool = PromptTool(
            name="get_weather",
            description=evil,
            parameters={
                "type": "object",
                "properties": {"city" + evil: {"type": "string", "description": evil}},
            },
        )
        items: list[Item] = [
            message("user", evil),
            Reasoning("r", "completed", [], [ReasoningText("x" + evil)]),
            message("assistant", "x" + evil),
            called("call_1", arguments=json.dumps({"city" + evil: evil, "days": 2})),
            output("call_1", evil),
            message("user", "x" + evil),
        ]
        prompt = model_format.write(
            PromptConversation(items=items, instructions="x" + evil, tools=[tool, PATCH])
        )
        return sum(token in controls for token in prompt.token_ids)

    plain = count("evil")
    for text in family.added:
        assert count(f"{text}{text} {text}") == plain, text


def test_custom_calls_and_their_outputs_are_those_of_a_function_with_one_string() -> None:
    items: list[Item] = [
        ASKED,
        CustomToolCall("c", "completed", "call_1", "patch", 'a "b"\n'),
        CustomToolCallOutput("o", "completed", "call_1", [InputText("done")]),
    ]
    text = write("hermes", *items, tools=[PATCH])
    assert '{"name": "patch", "arguments": {"input": "a \\"b\\"\\n"}}' in text
    assert "<tool_response>\ndone\n" in text
    assert '"properties": {"input": {"type": "string"}}, "required": ["input"]' in text


def test_reasoning_may_be_a_summary() -> None:
    thought = Reasoning("r", "completed", [SummaryText("In short.")])
    assert "<think>\nIn short.\n</think>\n\nYes." in write(
        "hermes", ASKED, thought, message("assistant", "Yes.")
    )


def test_several_calls_of_one_turn_are_one_message_and_text_comes_first() -> None:
    items: list[Item] = [ASKED, message("assistant", "I look."), called("a"), called("b", "get_time", "{}")]
    text = write("hermes", *items, output("b", "Noon."), output("a", "Rain."))
    assert (
        f'I look.\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n<tool'
        in text
    )
    assert text.count("<|im_start|>assistant") == 2
    assert text.index("Noon.") < text.index("Rain.")


def test_a_template_of_single_calls_gets_one_after_the_other_with_its_output() -> None:
    items: list[Item] = [ASKED, message("assistant", "I look."), called("a"), called("b", "get_time", "{}")]
    text = write("llama3_json", *items, output("b", "Noon."), output("a", "Rain."))
    places = [text.index(word) for word in ("I look.", '"get_weather"', '"Rain."', '"get_time"', '"Noon."')]
    assert places == sorted(places)


def test_a_system_message_that_a_template_refuses_is_the_users() -> None:
    text = write("gemma2", message("user", "Hi"), message("user", "there"), instructions="Be brief.")
    assert "<start_of_turn>user\nBe brief.\n\nHi\n\nthere<end_of_turn>" in text


def test_system_messages_that_a_template_wants_first_are_one() -> None:
    text = write("qwen3_coder", message("developer", "b"), ASKED, message("system", "c"), instructions="a")
    assert text.startswith("<|im_start|>system\na\n\nb\n\nc<|im_end|>\n<|im_start|>user\nWeather?")


def test_ids_are_nine_letters_where_a_template_wants_them_and_stay_paired() -> None:
    text = write(
        "mistral", ASKED, called("call_1"), called("Ab3dEf7hI", "get_time", "{}"), output("call_1", "Rain.")
    )
    assert '"id": "Ab3dEf7hI"' in text
    own_id = text.partition('"id": "')[2][:9]
    assert f'"call_id": "{own_id}"' in text
    assert own_id != "Ab3dEf7hI"


def test_kimis_ids_count_through_the_conversation() -> None:
    again: list[Item] = [
        message("user", "And?"),
        called("call_1", "get_time", "{}"),
        output("call_1", "Noon."),
    ]
    text = write("kimi_k2", *TURN, *again)
    assert "functions.get_time:1<|tool_call_argument_begin|>" in text
    assert "## Return of functions.get_time:1\nNoon." in text


def test_groups_of_tools_have_their_names_before_those_of_the_tools() -> None:
    tool = PromptTool(name="find", namespace="mail")
    made = FunctionCall("f", "completed", "a", "find", "{}", "mail")
    text = write("hermes", ASKED, made, tools=[tool])
    assert text.count('"name": "mail__find"') == 2


def test_documents_are_written_where_the_template_knows_them() -> None:
    assert "Paris is wet." in write("granite", ASKED, documents=[{"doc_id": 1, "text": "Paris is wet."}])
    with pytest.raises(PromptError) as refusal:
        write("hermes", ASKED, documents=[{"text": "Paris is wet."}])
    assert refusal.value.param == "documents"


def test_effort_is_told_in_the_templates_words() -> None:
    assert write("deepseek_v31", ASKED, reasoning_effort="high").endswith("<｜Assistant｜><think>")
    assert write("deepseek_v31", ASKED, reasoning_effort="none").endswith("<｜Assistant｜></think>")
    assert write("hermes", ASKED, reasoning_effort="minimal").endswith("<think>\n\n</think>\n\n")


def test_variables_of_callers_come_before_effort_and_are_few() -> None:
    text = write("hermes", ASKED, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert text.endswith("<|im_start|>assistant\n")
    for name, value in (("tools", "x"), ("bos_token", "x"), ("thinking", {}), ("date_string", "x" * 5_000)):
        with pytest.raises(PromptError) as refusal:
            write("hermes", ASKED, chat_template_kwargs={name: value})
        assert refusal.value.param == f"chat_template_kwargs.{name}"


def test_a_prompt_may_end_after_the_last_message() -> None:
    assert write("hermes", ASKED, add_generation_prompt=False).endswith("Weather?<|im_end|>\n")


def test_a_message_is_continued_where_it_ends() -> None:
    assert write("hermes", ASKED, message("assistant", "It is "), continue_final_message=True).endswith(
        "assistant\nIt is "
    )
    for items in ([ASKED], [message("assistant", "")], []):
        with pytest.raises(PromptError):
            write("hermes", *items, continue_final_message=True)


def test_an_item_without_a_meaning_here_is_left_out() -> None:
    other = OtherItem("x", "completed", {"type": "computer_call", "text": "secret"})
    assert write("hermes", other, ASKED) == write("hermes", ASKED)


@pytest.mark.parametrize("name", CALLERS)
def test_reasoning_of_earlier_turns_is_written_as_its_context_says(name: str) -> None:
    shape, items = format_of(name), [*TURN, message("assistant", "Rain."), message("user", "And now?")]
    assert ("I look." in write(name, *items)) == (shape.reasoning_context == "all_turns")
    assert "I look." not in write(name, *items, reasoning_context="current_turn")
    assert write(name, *TURN, reasoning_context="current_turn") == write(name, *TURN)
    if shape._capabilities.all_reasoning:
        assert "I look." in write(name, *items, reasoning_context="all_turns")
    else:
        with pytest.raises(PromptError, match="earlier turns"):
            write(name, *items, reasoning_context="all_turns")


def test_an_output_without_its_call_is_refused() -> None:
    with pytest.raises(PromptError, match="call_9"):
        write("hermes", ASKED, output("call_9", "Rain."))


@pytest.fixture
def make_format(tmp_path: Path) -> Callable[[str], ModelFormat]:
    """A model format with hermes' tokenizer and this template."""

    def make(source: str) -> ModelFormat:
        (tmp_path / "tokenizer.json").write_bytes((folder_of("hermes") / "tokenizer.json").read_bytes())
        (tmp_path / "chat_template.jinja").write_text(source)
        return load_model_format(tmp_path, frozenset())

    return make


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("source", "conversation", "param"),
    [
        (PLAIN + "{{ tools }}", PromptConversation(items=[ASKED], tools=[CLOCK]), "tools"),
        (
            PLAIN + "{{ raise_exception('No.') if thinking }}",
            PromptConversation(items=[ASKED], chat_template_kwargs={"thinking": True}),
            "chat_template_kwargs",
        ),
    ],
)
def test_what_a_template_cannot_write_is_refused_by_its_parameter(
    make_format: Callable[[str], ModelFormat],
    source: str,
    conversation: PromptConversation,
    param: str,
) -> None:
    with pytest.raises(PromptError) as refusal:
        make_format(source).write(conversation)
    assert refusal.value.param == param


def test_conversations_with_tools_may_have_a_template_of_their_own(
    make_format: Callable[[str], ModelFormat], tmp_path: Path
) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    own = "{{ tools | tojson }}<tool_call>" + PLAIN
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(own)
    model_format = make_format(PLAIN)
    with_tools = model_format.write(PromptConversation(items=[ASKED], tools=[CLOCK]))
    without = model_format.write(PromptConversation(items=[ASKED]))
    decode = tokenizer_at("hermes").decode
    assert decode(list(with_tools.token_ids)).startswith(
        '[{"type": "function", "function": {"name": "get_time"'
    )
    assert decode(list(without.token_ids)) == "user: Weather?\n"


def test_a_template_with_a_switch_writes_the_reasoning_of_all_turns_where_it_is_asked_to(
    make_format: Callable[[str], ModelFormat],
) -> None:
    thought = "{% if m.reasoning_content and preserve_thinking %}{{ m.reasoning_content }}{% endif %}"
    switched = make_format("{% for m in messages %}{{ m.role }}: " + thought + "{{ m.content }} {% endfor %}")
    items = [ASKED, TURN[1], message("assistant", "Rain."), message("user", "And now?")]
    own = switched.write(PromptConversation(items=items))
    whole = switched.write(PromptConversation(items=items, reasoning_context="all_turns"))
    assert switched.reasoning_context == "current_turn"
    assert len(whole.token_ids) > len(own.token_ids)
