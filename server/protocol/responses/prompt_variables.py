"""Stored prompts: in instructions and messages `{{name}}` is replaced once by a request's variable. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from server.errors import InvalidRequest
from server.protocol.decode import decode
from server.protocol.error_object import invalid_value, unsupported_value
from server.protocol.responses.input import ItemReference, read_input
from server.protocol.responses.items import MAX_TEXT, ContentPart, InputText, Item, Message, OutputText

_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]{0,63})\s*\}\}")


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    instructions: str | None = None
    input: str | list[dict[str, Any]] | None = None


class Template(msgspec.Struct, frozen=True):
    """The content of a stored prompt."""

    instructions: str | None
    items: list[Item]
    """Without ids."""

    @property
    def names(self) -> set[str]:
        return {match[1] for text in self._texts() for match in _VARIABLE.finditer(text)}

    def _texts(self) -> Iterator[str]:
        yield self.instructions or ""
        for item in self.items:
            if isinstance(item, Message):
                yield from (part.text for part in item.content if isinstance(part, InputText | OutputText))


def read_template(content: bytes) -> Template:
    """Decodes a template from JSON. Raises InvalidRequest."""
    prompt = decode(content, _Content)
    items: list[Item] = []
    for item in read_input(prompt.input) if prompt.input is not None else []:
        if not isinstance(item, Item):
            kind = "references to items" if isinstance(item, ItemReference) else "compaction triggers"
            raise unsupported_value(f"A prompt cannot hold {kind}.", "input")
        items.append(item)
    if not prompt.instructions and not items:
        raise invalid_value("A prompt needs instructions, or input.", None)
    return Template(prompt.instructions, items)


def fill(template: Template, variables: Mapping[str, Any]) -> Template:
    """The template with its variables substituted. Raises InvalidRequest for a missing or wrong variable."""
    names = template.names
    if missing := sorted(names - set(variables)):
        raise _variable_failure(
            missing[0], f"The prompt needs the variable '{missing[0]}'.", "missing_variable"
        )
    if unknown := sorted(set(variables) - names):
        raise _variable_failure(
            unknown[0], f"The prompt has no variable '{unknown[0][:64]}'.", "unknown_variable"
        )
    values = {name: _text_of(name, value) for name, value in variables.items()}
    _refuse_too_long(template._texts(), values)
    instructions = template.instructions
    return Template(
        _filled(instructions, values) if instructions is not None else None,
        [_filled_item(item, values) for item in template.items],
    )


def _variable_failure(name: str, sentence: str, code: str) -> InvalidRequest:
    return InvalidRequest(sentence, f"prompt.variables.{name[:64]}", code)


def _text_of(name: str, value: object) -> str:
    match value:
        case str():
            return value
        case {"type": "input_text", "text": str(text)}:
            return text
    raise _variable_failure(name, f"The variable '{name}' must be a string or an input_text.", "invalid_type")


def _refuse_too_long(texts: Iterable[str], values: Mapping[str, str]) -> None:
    """Checks the length before substitution: a short template can repeat a long value many times."""
    size = sum(len(text) + sum(len(values[match[1]]) for match in _VARIABLE.finditer(text)) for text in texts)
    if size > MAX_TEXT:
        raise invalid_value(
            f"With these variables the prompt is longer than {MAX_TEXT} characters.", "prompt.variables"
        )


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: values[match[1]], text)


def _filled_item(item: Item, values: Mapping[str, str]) -> Item:
    if not isinstance(item, Message):
        return item
    content: list[ContentPart] = [
        msgspec.structs.replace(part, text=_filled(part.text, values))
        if isinstance(part, InputText | OutputText)
        else part
        for part in item.content
    ]
    return msgspec.structs.replace(item, content=content)
