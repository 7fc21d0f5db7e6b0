"""Decodes tokens into harmony messages in the form of openai-harmony's `Message.to_dict`. Pure.

vLLM's `input_messages` and `output_messages` have this form. System and developer content is one text, as
the model reads it; the library has separate fields.
"""

from collections.abc import Sequence
from typing import Any

from server.model_formats.harmony.message_header import read_header
from server.model_formats.harmony.vocabulary import CALL, CONSTRAIN, END, ENDOFTEXT, MESSAGE, RETURN, START
from server.model_formats.interface import Messages

_ROLES = frozenset({"system", "developer", "user", "assistant"})
_ENDS = frozenset({END, CALL, RETURN, ENDOFTEXT})


def read_messages(token_ids: Sequence[int], tokens: Sequence[bytes]) -> Messages:
    """The messages in these tokens, which begin at a message boundary. Raises nothing.

    `tokens` has the bytes of each token id. The last message may be incomplete; a header alone is no message.
    """
    messages: list[dict[str, Any]] = []
    complete = 0
    header: list[int] = []
    content: list[int] | None = None
    for token in token_ids:
        if token == START or token in _ENDS:
            if content is not None:
                messages.append(_message(header, content, tokens))
                complete = len(messages)
            header, content = [], None
        elif content is not None:
            content.append(token)
        elif token == MESSAGE:
            content = []
        else:
            header.append(token)
    if content is not None:
        messages.append(_message(header, content, tokens))
    return Messages(messages, complete)


def _message(header_ids: Sequence[int], content: Sequence[int], tokens: Sequence[bytes]) -> dict[str, Any]:
    header = read_header(header_ids, tokens, names_author=True)
    is_role = header.author in _ROLES
    text = b"".join(tokens[token] for token in content if 0 <= token < len(tokens)).decode(errors="replace")
    message: dict[str, Any] = {
        "role": header.author if is_role else "tool",
        "name": None if is_role else header.author,
        "content": [{"type": "text", "text": text}],
    }
    if header.channel is not None:
        message["channel"] = header.channel
    if header.recipient is not None:
        message["recipient"] = header.recipient
    if header.content_type is not None:
        constrained = "<|constrain|>" if CONSTRAIN in header_ids else ""
        message["content_type"] = constrained + header.content_type
    return message
