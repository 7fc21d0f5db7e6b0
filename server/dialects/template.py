"""A model folder's own chat template and tokenizer: messages in, token ids out.

Reads `tokenizer.json` with the tokenizers library and renders the template in Jinja's immutable sandbox, as
transformers does, but without importing torch. Templates come from the operator's model folder only.

Text written by users must not act as markup. Every control token in it is split by a marker before
rendering, and the rendered text is encoded piece by piece between markers, so the tokenizer never sees a
whole control token where the template did not write one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from server.dialects.base import PromptError

_MARKER = "\ufdd0"
"""A Unicode noncharacter: never valid in interchanged text, so removing it from input loses nothing."""

_TEMPLATE_MISTAKES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""What a template raises, beside its own errors, that was not written for this conversation."""

Message = dict[str, Any]


class ChatTemplate:
    """The prompt writer of one model folder. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError or ValueError, naming the file, when the folder is not usable."""
        tokenizer_file = folder / "tokenizer.json"
        if not tokenizer_file.is_file():
            raise FileNotFoundError(f"{tokenizer_file} does not exist; a model folder needs it.")
        self.tokenizer = _read_tokenizer(tokenizer_file)
        config = _read_json(folder / "tokenizer_config.json")
        source = _template_source(folder, config)
        try:
            self._template = _compile(source)
        except TemplateError as error:
            raise ValueError(f"The chat template of {folder} is not valid: {error}.") from error
        self._special = _special_tokens(config)
        self.thinks = "<think>" in source
        controls = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
        self._control_start = _start_of_any(controls)

    def render(self, messages: Sequence[Message], **variables: object) -> str:
        """The prompt's text, generation prompt included, markers still in it."""
        guarded = [{**message, "content": self._guard(message["content"])} for message in messages]
        try:
            return self._template.render(
                messages=guarded, add_generation_prompt=True, **self._special, **variables
            )
        except (TemplateError, *_TEMPLATE_MISTAKES) as error:
            raise PromptError(f"The model's chat template refused the conversation: {error}.") from error

    def encode(self, rendered: str) -> tuple[int, ...]:
        """Token ids of what `render` gave."""
        pieces = self.tokenizer.encode_batch_fast(rendered.split(_MARKER), add_special_tokens=False)
        return tuple(token for piece in pieces for token in piece.ids)

    def _guard(self, text: str) -> str:
        clean = text.replace(_MARKER, "")
        return self._control_start.sub(lambda found: found[0] + _MARKER, clean)


def _start_of_any(controls: Sequence[str]) -> re.Pattern[str]:
    """Matches the first character of every control token, also of those that overlap."""
    rests: dict[str, list[str]] = {}
    for text in controls:
        if len(text) > 1:
            rests.setdefault(text[0], []).append(re.escape(text[1:]))
    starts = [f"{re.escape(first)}(?={'|'.join(following)})" for first, following in rests.items()]
    return re.compile("|".join(starts) or r"(?!)")


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more exact
        raise ValueError(f"{path} cannot be read as a tokenizer: {error}.") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from error
    return content


def _template_source(folder: Path, config: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str):
        raise ValueError(f"{folder} has no chat template (chat_template.jinja or tokenizer_config.json).")
    return template


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and the like, which templates use as variables."""
    found = {}
    for key, value in config.items():
        if key.endswith("_token") and value:
            found[key] = value["content"] if isinstance(value, dict) else str(value)
    return found


def _compile(source: str) -> Template:
    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    def strftime_now(pattern: str) -> str:
        return datetime.now().astimezone().strftime(pattern)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(source)
