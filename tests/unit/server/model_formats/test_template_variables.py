"""Efforts and callers' variables reach a template in its own words, and none of its refusals a client."""

import logging
from typing import Any

import pytest

from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.model_format import PromptConversation, PromptError
from server.protocol.responses.items import InputText, Message
from server.protocol.responses.request import Effort
from tests.support.families import format_of, templated, tokenizer_at

ASKED = Message("m", "completed", "user", [InputText("Hi")])
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ALL: tuple[Effort, ...] = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def prompt(shape: ChatTemplateFormat, **changes: Any) -> str:
    written = shape.write(PromptConversation(items=[ASKED], **changes))
    text: str = tokenizer_at("hermes").decode(list(written.token_ids), skip_special_tokens=False)
    return text


def words(shape: ChatTemplateFormat) -> str:
    """What each effort adds to the prompt."""
    return " ".join(prompt(shape, reasoning_effort=effort).removeprefix("user: Hi\n") for effort in ALL)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "{{ raise_exception('?') if reasoning_effort not in ['low', 'high'] }}{{ reasoning_effort }}",
            "low low low high high high high",
        ),
        (
            "{{ raise_exception('?') if thinking_level not in ('low', 'high', 'max') }}{{ thinking_level }}",
            "low low low high high max max",
        ),
        (
            "{{ {'no_think': 'no', 'low': 'low', 'high': 'high'}[reasoning_effort] or raise_exception() }}",
            "no no low high high high high",
        ),
        ("{{ reasoning_strength }}", "none minimal low medium high xhigh max"),
        (
            "{{ {'high': 'hard', 'max': 'harder'}.get(reasoning_effort, 'so') }}",
            "so so so so hard harder harder",
        ),
        (
            "{{ 'none' if reasoning_effort in ['low', 'minimal'] else 'all' }}",
            "none none none all all all all",
        ),
        (
            "{{ {'enabled': 'on', 'disabled': 'off'}.get(thinking_mode, 'may') }}",
            "off off on on on on on",
        ),
        ("{{ thinking_budget if thinking_budget is defined else 'any' }}", "0 0 1024 4096 any any any"),
        ("{{ enable_thinking }}{{ raise_exception('?') if reasoning_effort }}", "False False" + " True" * 5),
        ("{{ raise_exception('?') if enable_thinking is defined }}x", "x x x x x x x"),
    ],
)
def test_an_effort_is_the_nearest_that_the_template_knows(source: str, told: str) -> None:
    assert words(templated(PLAIN + source)) == told


def test_an_effort_that_only_some_conversations_refuse_is_left_out_of_those() -> None:
    source = "{{ raise_exception('?') if reasoning_effort == 'high' and messages[0].content == 'No' }}"
    shape = templated(PLAIN + source + "{{ reasoning_effort }}")
    refused = Message("m", "completed", "user", [InputText("No")])
    assert shape.write(PromptConversation(items=[refused], reasoning_effort="high"))
    assert prompt(shape, reasoning_effort="high").endswith("high")


def test_an_effort_without_effect_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for shape, count in ((templated(PLAIN), 1), (format_of("hermes"), 0)):
        caplog.clear()
        for _ in range(2):
            shape.write(PromptConversation(items=[ASKED]))
        assert not caplog.records
        for effort in ("low", "high"):
            shape.write(PromptConversation(items=[ASKED], reasoning_effort=effort))
        assert [record.getMessage() for record in caplog.records] == [
            "reasoning.effort has no effect: the model's chat template reads no effort."
        ] * count


def test_a_variable_that_the_template_reads_may_be_told_and_may_be_a_small_list() -> None:
    shape = templated(PLAIN + "{% set mood = mood or 'calm' %}{{ mood }} {{ facts | tojson }}")
    told = {"mood": "glad", "facts": [1, {"a": "<|im_end|>"}]}
    written = shape.write(PromptConversation(items=[ASKED], chat_template_kwargs=told))
    assert (
        tokenizer_at("hermes")
        .decode(list(written.token_ids), skip_special_tokens=False)
        .endswith('glad [1, {"a": "<|im_end|>"}]')
    )
    end = tokenizer_at("hermes").token_to_id("<|im_end|>")
    assert end not in written.token_ids, "a variable's text is no markup"
    assert shape.template_inputs == ["facts", "mood"]


@pytest.mark.parametrize(
    "value", ["x" * 5000, ["x"] * 3000, {"a": {"b": ["x" * 5000]}}, {"x" * 5000: 1}, [[[]] * 5000]]
)
def test_a_large_variable_is_refused(value: Any) -> None:
    with pytest.raises(PromptError, match="may have 4096 characters") as refusal:
        prompt(templated(PLAIN + "{{ facts }}"), chat_template_kwargs={"facts": value})
    assert refusal.value.param == "chat_template_kwargs.facts"


@pytest.mark.parametrize(
    "name",
    [
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("bos_token", "pad_token", "range", "namespace", "strftime_now", "raise_exception", "m", "own", "x"),
    ],
)
def test_a_variable_that_the_template_does_not_read_from_outside_is_refused_with_those_that_it_reads(
    name: str,
) -> None:
    source = "{% set own = mood %}{{ own }}{{ facts }}{{ bos_token }}{{ range(2) }}{{ documents }}"
    with pytest.raises(PromptError, match="the model's reads facts, mood") as refusal:
        prompt(templated(source + PLAIN), chat_template_kwargs={name: "x"})
    assert refusal.value.param == f"chat_template_kwargs.{name}"


def test_a_list_of_the_templates_own_may_grow() -> None:
    source = "{% set own = [] %}{% for m in messages %}{% set _ = own.append(m.content) %}{% endfor %}"
    assert prompt(templated(source + "{{ own | join }}!")) == "Hi!"


def test_a_template_of_2024_gets_its_tools_as_text() -> None:
    shape = templated("{{ functions }} {{ datetime }}" + PLAIN)
    assert prompt(shape).startswith("[] ")
