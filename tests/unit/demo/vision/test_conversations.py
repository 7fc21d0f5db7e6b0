"""Conversations about pictures read as the chat template writes them, and are answered as they should."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from demo.rendering import render, template_messages, template_tools
from demo.tokenizer import token_id
from demo.vision import questions
from demo.vision.conversations import Talk, random_talk
from demo.vision.export import CHAT_TEMPLATE
from demo.vision.model import IMAGE, vision_tokenizer
from demo.vision.pictures import COLOURS, THINGS
from demo.vision.questions import Sight
from demo.vision.talk import encode
from demo.vocabulary import Vocabulary


def talks(count: int, seed: int = 1) -> list[Talk]:
    vocabulary, chooser = Vocabulary(seed), random.Random(seed)
    return [
        random_talk(vocabulary, lambda: Sight(chooser.choice(COLOURS), chooser.choice(THINGS)))
        for _ in range(count)
    ]


def as_parts(text: str) -> list[dict[str, str]]:
    """The parts of a message as clients send them."""
    parts: list[dict[str, str]] = []
    for place, piece in enumerate(text.split(IMAGE)):
        parts += [{"type": "image"}] * bool(place)
        parts += [{"type": "text", "text": piece}] * bool(piece)
    return parts


@functools.cache
def chat_tokenizer() -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=vision_tokenizer())  # type: ignore[no-untyped-call]


def templated(messages: list[dict[str, Any]], **values: Any) -> str:
    """What transformers makes of the messages with the recipe's template."""
    template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    text = chat_tokenizer().apply_chat_template(messages, chat_template=template, tokenize=False, **values)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("in_parts", [False, True])
def test_the_template_writes_what_the_model_was_trained_on(in_parts: bool) -> None:
    for talk in talks(60):
        messages = template_messages(talk.conversation.messages, thinking=False)
        for message in messages:
            if in_parts and message["role"] != "assistant":
                message["content"] = as_parts(message["content"])

        text = templated(messages, tools=template_tools(talk.conversation.tools))

        assert text == "".join(piece.text for piece in render(talk.conversation, thinking=False))
        assert text.count(IMAGE) == len(talk.sights)


def test_the_template_opens_the_answer() -> None:
    text = templated([{"role": "user", "content": [{"type": "image"}]}], add_generation_prompt=True)

    assert text == "<|im_start|>user\n<image><|im_end|>\n<|im_start|>assistant\n"


def test_the_same_seed_makes_the_same_conversations() -> None:
    assert talks(20) == talks(20)
    assert talks(20) != talks(20, seed=2)


def test_each_picture_of_an_example_takes_its_tokens_and_only_answers_are_trained() -> None:
    tokenizer = vision_tokenizer()
    image = token_id(tokenizer, IMAGE)
    for talk in talks(50):
        example = encode(talk, tokenizer, 9)

        assert example.ids.count(image) == 9 * len(talk.sights)
        assert image not in example.labels
        trained = tokenizer.decode([label for label in example.labels if label >= 0])
        answers = [m.text for m in talk.conversation.messages if m.role == "assistant"]
        assert trained == "".join(answers)


def test_answers_name_what_is_shown() -> None:
    star, seven = Sight("orange", "star"), Sight("blue", "7")

    assert star.described() == "An orange star."
    assert seven.described() == "The digit 7, in blue."
    assert (star.coloured(), star.shaped()) == ("It is orange.", "It is a star.")
    assert (star.read(), seven.read()) == ("There is no digit. It is a star.", "The digit is 7.")
    assert "an orange star" in star.told()
    assert "a blue digit 7" in seven.told()


def test_every_question_without_a_picture_is_told_so() -> None:
    answers = {
        answer.text
        for talk in talks(1000)
        if not talk.sights
        for answer in talk.conversation.messages
        if answer.role == "assistant"
    }

    assert answers == {questions.NO_PICTURE, questions.FALLBACK, *questions.SMALL_TALK}
