"""Tokens of gpt-oss's format as messages: as openai-harmony tells those that it has rendered."""

import msgspec
from openai_harmony import Author, Message, Role

from server.model_formats.harmony.harmony_parser import read_messages
from tests.support.harmony import encoding, ids_of, oracle

RENDERED = [
    Message.from_role_and_content(Role.USER, "Grüß dich 🙂"),
    Message.from_role_and_content(Role.ASSISTANT, "A greeting.").with_channel("analysis"),
    Message.from_role_and_content(Role.ASSISTANT, "{}")
    .with_channel("commentary")
    .with_recipient("functions.look")
    .with_content_type("<|constrain|>json"),
    Message.from_author_and_content(Author.new(Role.TOOL, "functions.look"), "It is noon.")
    .with_channel("commentary")
    .with_recipient("assistant"),
    Message.from_role_and_content(Role.ASSISTANT, "Noon.").with_channel("final"),
]


def test_each_message_is_told_as_the_library_tells_it() -> None:
    token_ids = [token for message in RENDERED for token in oracle().render(message)]
    told = read_messages(token_ids, encoding().tokens)
    expected = [msgspec.to_builtins(one.to_dict(), str_keys=True) for one in RENDERED]
    assert told.messages == [{**one, "role": one["role"]} for one in expected]
    assert told.complete == len(RENDERED)


def test_last_message_may_be_open_and_a_header_alone_is_none() -> None:
    tokens = encoding().tokens
    begun = ids_of("<|start|>user<|message|>Hi<|end|><|start|>assistant")
    assert (len(read_messages(begun, tokens).messages), read_messages(begun, tokens).complete) == (1, 1)
    open_ = read_messages([*begun, *ids_of("<|channel|>final<|message|>Hel")], tokens)
    assert (open_.messages[-1]["content"], open_.complete) == ([{"type": "text", "text": "Hel"}], 1)


def test_any_tokens_are_read() -> None:
    tokens = encoding().tokens
    for text in ("<|message|><|message|>x<|call|>", "<|end|><|end|>", "<|channel|><|constrain|>", ""):
        read_messages(ids_of(text), tokens)
