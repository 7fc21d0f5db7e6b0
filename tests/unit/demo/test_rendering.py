"""Two renderings of a conversation, one trained with and one shipped, are the same text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoTokenizer

from demo.chat import Call, Conversation, Message, Tool
from demo.conversations import random_conversation
from demo.export import CHAT_TEMPLATE
from demo.rendering import ANSWER_START, THOUGHT_END, TURN_END, render, template_messages, template_tools
from demo.vocabulary import Vocabulary
from tests.unit.demo.shipped import SHIPPED

Template = Callable[..., str]

CALLS = (Call("f", {"a": 'x "y" <&>', "b": [1, None, {"c": 2.5}]}), Call("g", {}))
CALLING = Conversation(
    (
        Message("system", ""),
        Message("user", "Both, please."),
        Message("assistant", "Here you are.", thought="Two calls.", calls=CALLS),
        Message("tool", "é 日本 🙂"),
        Message("tool", ""),
        Message("assistant", "Done.", thought="I have both."),
    ),
    (Tool("f", {"a": "string", "b": "array"}), Tool("g", {})),
)


@pytest.fixture(scope="module")
def template() -> Template:
    tokenizer: Any = AutoTokenizer.from_pretrained(SHIPPED)
    text = CHAT_TEMPLATE.read_text(encoding="utf-8")

    def apply(conversation: Conversation, *, thinking: bool) -> str:
        rendered = tokenizer.apply_chat_template(
            template_messages(conversation.messages, thinking=thinking),
            tools=template_tools(conversation.tools),
            chat_template=text,
            tokenize=False,
        )
        assert isinstance(rendered, str)
        return rendered

    return apply


def text_of(conversation: Conversation, *, thinking: bool) -> str:
    return "".join(piece.text for piece in render(conversation, thinking=thinking))


@pytest.mark.parametrize("thinking", [False, True])
def test_rendering_equals_the_chat_template_for_random_conversations(
    template: Template, *, thinking: bool
) -> None:
    vocabulary = Vocabulary("rendering")
    for _ in range(200):
        conversation = random_conversation(vocabulary)
        expected = template(conversation, thinking=thinking)
        assert text_of(conversation, thinking=thinking) == expected


@pytest.mark.parametrize("thinking", [False, True])
def test_rendering_equals_the_chat_template_when_calls_stand_beside_text(
    template: Template, *, thinking: bool
) -> None:
    expected = template(CALLING, thinking=thinking)

    assert text_of(CALLING, thinking=thinking) == expected


def test_random_conversations_have_tools_calls_thoughts_and_system_messages() -> None:
    vocabulary = Vocabulary("variety")
    conversations = [random_conversation(vocabulary) for _ in range(1000)]
    messages = [message for known in conversations for message in known.messages]

    assert any(conversation.tools for conversation in conversations)
    assert any(len(message.calls) > 1 for message in messages)
    assert all(message.thought for message in messages if message.role == "assistant")
    assert {message.role for message in messages} == {"system", "user", "assistant", "tool"}


def test_rendering_trains_each_answer_with_its_end_and_nothing_else() -> None:
    vocabulary = Vocabulary("trained")
    for _ in range(50):
        conversation = random_conversation(vocabulary)
        pieces = render(conversation, thinking=vocabulary.chance(0.5))
        trained = [piece.text for piece in pieces if piece.is_trained]
        openings = [piece for piece in pieces if piece.text.startswith(ANSWER_START)]

        answers = [text for text in trained if not text.endswith(THOUGHT_END)]
        assert all(text.endswith(TURN_END) and text.count(TURN_END) == 1 for text in answers)
        assert len(answers) == len(openings)
        assert not any(piece.is_trained for piece in openings)
