"""Conversations that a template refuses or writes with a loss get the least that it needs: what is left of a
long one after a compaction has often no message of a user.
"""

from collections.abc import Sequence

import pytest

from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.model_format import PromptConversation, PromptError
from server.protocol.responses.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)
from server.protocol.responses.request import Effort
from tests.support.families import CALLERS, CLOCK, WEATHER, format_of, ids_of, shown, templated, tokenizer_at

SYSTEM = Message("s", "completed", "system", [InputText("Sys.")])
SUMMARY = Message("cmp", "completed", "developer", [InputText("Sum.")])
USER = Message("u", "completed", "user", [InputText("Ask.")])
FIRST = Message("a", "completed", "assistant", [OutputText("First.")])
SECOND = Message("b", "completed", "assistant", [OutputText("Second.")])
EMPTY = Message("e", "completed", "assistant", [OutputText("")])
CALL = FunctionCall("f", "completed", "call_1", "get_weather", '{"city": "Paris"}')
OUTPUT = FunctionCallOutput(id="o", status="completed", call_id="call_1", output="Rain.")
THOUGHT = Reasoning("r", "completed", [], [ReasoningText("Hm.")])

CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}"
)
TURNS = (
    "{{ tools | tojson }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    + CALLS
    + "{% endfor %}{% if add_generation_prompt %}[go]{% endif %}"
)
NEEDS_USER = (
    "{% if not messages | selectattr('role', 'equalto', 'user') | list %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}"
)
ALTERNATES = (
    "{% set ns = namespace(next='user') %}{% for m in messages %}"
    "{% if m.role in ('user', 'assistant') and not m.tool_calls %}"
    "{% if m.role != ns.next %}{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "{% if m.role == 'assistant' and not m.content %}{{ raise_exception('Empty.') }}{% endif %}"
    "{% set ns.next = 'assistant' if m.role == 'user' else 'user' %}{% endif %}{% endfor %}"
)
FIRST_IS_USERS = (
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% if not rest %}{{ raise_exception('There is no first message.') }}{% endif %}"
    "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}"
    "[user]{{ tools | tojson }}{{ rest[0].content }}{% for m in rest[1:] %}[{{ m.role }}]{{ m.content }}"
    + CALLS
    + "{% endfor %}"
)
OUTPUT_AFTER_CALL = (
    "{% for m in messages %}{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
    "{{ raise_exception('There was no call.') }}{% endif %}{% endfor %}"
)


def written(shape: ChatTemplateFormat, *items: Item, name: str = "hermes") -> str:
    prompt = shape.write(PromptConversation(items=items, tools=[WEATHER, CLOCK]))
    text: str = tokenizer_at(name).decode(list(prompt.token_ids), skip_special_tokens=False)
    return text


def turns(source: str, *items: Item) -> str:
    """The prompt without the tools."""
    before, _, after = written(templated(source), *items).rpartition("}]")
    return before.partition("[{")[0] + after


PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("source", "items", "prompt"),
    [
        (TURNS, [CALL, OUTPUT], f"[assistant]{PARIS}[tool]Rain.[go]"),
        (NEEDS_USER + TURNS, [SYSTEM], "[system]Sys.[user][go]"),
        (
            NEEDS_USER + TURNS,
            [SUMMARY, CALL, OUTPUT],
            f"[system]Sum.[user][assistant]{PARIS}[tool]Rain.[go]",
        ),
        (NEEDS_USER + TURNS, [FIRST], "[user][assistant]First.[go]"),
        (NEEDS_USER + TURNS, [SYSTEM, CALL, OUTPUT], f"[system]Sys.[user][assistant]{PARIS}[tool]Rain.[go]"),
        (NEEDS_USER + TURNS, [FIRST, USER], "[assistant]First.[user]Ask.[go]"),
        (NEEDS_USER + TURNS, [], "[user][go]"),
        (ALTERNATES + TURNS, [FIRST, USER], "[user][assistant]First.[user]Ask.[go]"),
        (ALTERNATES + TURNS, [USER, FIRST, SECOND], "[user]Ask.[assistant]First.\n\nSecond.[go]"),
        (
            ALTERNATES + TURNS,
            [USER, CALL, OUTPUT, USER],
            f"[user]Ask.[assistant]{PARIS}[tool]Rain.[assistant] [user]Ask.[go]",
        ),
        (ALTERNATES + TURNS, [USER, EMPTY, USER], "[user]Ask.[assistant] [user]Ask.[go]"),
        (FIRST_IS_USERS, [FIRST, USER], "[user][assistant]First.[user]Ask."),
        (FIRST_IS_USERS, [SYSTEM], "[system]Sys.[user]"),
        (TURNS, [USER, CALL, FIRST, OUTPUT], f"[user]Ask.[assistant]{PARIS}[assistant]First.[tool]Rain.[go]"),
        (
            OUTPUT_AFTER_CALL + TURNS,
            [USER, FIRST, CALL, SECOND, OUTPUT],
            f"[user]Ask.[assistant]First.\n\nSecond.{PARIS}[tool]Rain.[go]",
        ),
    ],
)
def test_a_conversation_gets_the_least_that_its_template_needs(
    source: str, items: Sequence[Item], prompt: str
) -> None:
    assert turns(source, *items) == prompt


def test_a_template_that_writes_instructions_at_the_last_user_only_gets_them_as_the_users() -> None:
    system = "{% if m.role == 'system' %}{{ m.content if messages[-1].role == 'user' }}{% else %}"
    source = "{% for m in messages %}" + system + "[{{ m.role }}]{{ m.content }}" + CALLS
    source += "{% endif %}{% endfor %}{{ tools }}"
    assert "[user]Sys.\n\nAsk.[assistant]" in written(templated(source), SYSTEM, USER, CALL, OUTPUT)


def test_a_template_that_is_for_tools_alone_gets_none_as_an_empty_list() -> None:
    shape = templated("{% for tool in tools %}{{ tool.function.name }} {% endfor %}{{ messages[0].content }}")
    prompt = shape.write(PromptConversation(items=[USER]))
    assert tokenizer_at("hermes").decode(list(prompt.token_ids)) == "Ask."


@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize(
    "items",
    [
        [SYSTEM],
        [FIRST],
        [CALL, OUTPUT],
        [THOUGHT, CALL, OUTPUT],
        [USER, FIRST, CALL, SECOND, OUTPUT],
        [THOUGHT],
    ],
    ids=lambda items: " ".join(item.id for item in items),
)
def test_every_family_is_asked_without_a_user_and_in_odd_orders(name: str, items: list[Item]) -> None:
    text = written(format_of(name), *items, name=name)
    for item, words in ((SYSTEM, "Sys."), (FIRST, "First."), (SECOND, "Second."), (OUTPUT, "Rain.")):
        assert (words in text) == (item in items)


@pytest.mark.parametrize("effort", ["high", "none"])
@pytest.mark.parametrize(
    ("shut", "opened", "end"),
    [
        ("<think>\n\n</think>\n\n", "<think>\n", "<think>\nHm."),
        ("<think>\n\n</think>\n\n", "", "<think>\nHm."),
        ("<think></think>", "<think>", "<think>Hm."),
        ("</think>", "<think>", "<think>Hm."),
    ],
)
def test_a_thought_that_is_last_is_continued(shut: str, opened: str, end: str, effort: Effort) -> None:
    start = "{% if enable_thinking is defined and not enable_thinking %}SHUT{% else %}OPENED{% endif %}"
    shape = templated(TURNS + start.replace("SHUT", shut).replace("OPENED", opened))
    for rest in ([THOUGHT], [THOUGHT, EMPTY]):
        prompt = shape.write(
            PromptConversation(
                items=[USER, CALL, OUTPUT, *rest],
                continue_final_message=True,
                add_generation_prompt=False,
                reasoning_effort=effort,
            )
        )
        text = tokenizer_at("hermes").decode(list(prompt.token_ids), skip_special_tokens=False)
        assert text.endswith("[tool]Rain.[go]" + end)
        parser = shape.parser(prompt)
        deltas = [*parser.feed(ids_of("hermes", " More.</think>Rain.")), *parser.close()]
        assert shown(deltas) == ["thought  More.", "text Rain."]


def test_a_thought_of_a_model_that_does_not_reason_is_not_continued() -> None:
    with pytest.raises(PromptError, match="does not reason"):
        templated(TURNS).write(PromptConversation(items=[USER, THOUGHT], continue_final_message=True))


def test_a_thought_before_a_user_is_not_continued() -> None:
    silent = Message("u", "completed", "user", [InputText("")])
    with pytest.raises(PromptError, match="with text and last"):
        format_of("hermes").write(
            PromptConversation(items=[USER, THOUGHT, silent], continue_final_message=True)
        )


def test_properties_without_a_description_are_written_where_the_template_needs_one() -> None:
    source = (
        "{# <tool_call> #}{{ messages[0].content }}"
        "{% for tool in tools %}{{ tool.function.name }}"
        "{% for name, field in tool.function.parameters.properties.items() %}"
        "{{ '[' + name + ': ' + field.description + ']' }}{% endfor %}{% endfor %}"
    )
    shape = templated(source)
    prompt = shape.write(PromptConversation(items=[USER], tools=(WEATHER,)))
    assert shape.spell(prompt.token_ids) == "Ask.get_weather[city: ][days: ][units: ]"
