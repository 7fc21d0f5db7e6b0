"""Errors name the field that the caller sent, not the one that it was translated to. Pure.

Chats and completions are run as responses, older names as newer ones, a generation config as parameters.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from server.admission.request_validation import CONFIG_NAMES
from server.errors import ApiError
from server.prompting.structured_outputs import OLD_NAMES
from server.protocol.completions.requests import CompletionParameters, TextRequest, TokenizeRequest
from server.protocol.error_object import DecodeFailure
from server.protocol.responses.request import CreateResponse

Translated = CompletionParameters | CreateResponse | TokenizeRequest
_FIRST_NAME = re.compile(r"([^.\[]*)(.*)", re.DOTALL)
_INDEXED = re.compile(r"\[(\d+)\]\.?(.*)", re.DOTALL)
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_CHAT_PATHS = {
    "include": "logprobs",
    "input": "messages",
    "reasoning.effort": "reasoning_effort",
    "text": "response_format",
    "text.format": "response_format",
    "text.format.type": "response_format.type",
    "text.verbosity": "verbosity",
}
"""A chat's path of a response's."""
_TEXT_NAMES = {"input": "prompt", "include": "logprobs", "top_logprobs": "logprobs"}
"""The name of a parameter of /v1/completions by that of a response's."""


@contextmanager
def naming_own_fields(request: Translated) -> Iterator[None]:
    """Has the errors of what is done with the request name its own fields, in `param` and in the sentence."""
    try:
        yield
    except (ApiError, DecodeFailure) as error:
        if error.param is not None and (own := own_path(request, error.param)) != error.param:
            error.args = (_renamed(str(error), error.param, own),)
            error.param = own
        raise


def _renamed(sentence: str, path: str, own: str) -> str:
    """The sentence with the own path. A bare word may be one of the language, so it needs its quotes."""
    if "." in path or "[" in path:
        return sentence.replace(path, own)
    return sentence.replace(f"'{path}'", f"'{own}'")


def own_path(request: Translated, path: str) -> str:
    """The path in the caller's body of a path in the request that it was translated to."""
    name, rest = _FIRST_NAME.match(path).groups()  # type: ignore[union-attr]  # matches any text
    if (configured := _in_generation_config(request, name)) is not None:
        return configured
    if name == "structured_outputs":
        return _grammar_path(request, rest)
    if isinstance(request, CreateResponse):
        return path
    if name == "max_output_tokens":
        return next((limit for limit in _LIMITS if getattr(request, limit, None) is not None), "max_tokens")
    if isinstance(request, TextRequest) or getattr(request, "prompt", None) is not None:
        return f"{_TEXT_NAMES.get(name, name)}{rest}"
    match name:
        case "tools":
            return f"tools{_in_tools(getattr(request, 'tools', None), rest)}"
        case "tool_choice":
            return f"tool_choice{_in_choice(getattr(request, 'tool_choice', None), rest)}"
        case "text" if path.startswith("text.format.") and path not in _CHAT_PATHS:
            return f"response_format.json_schema.{path.removeprefix('text.format.')}"
    return _CHAT_PATHS.get(path) or f"{_CHAT_PATHS.get(name, name)}{rest}"


def _in_generation_config(request: Translated, name: str) -> str | None:
    """The path of a parameter that the generation config has set; None for any other."""
    if getattr(request, "generation_config", None) is None:
        return None
    names = _LIMITS if name in _LIMITS else (name,)
    if name not in CONFIG_NAMES or any(getattr(request, field, None) is not None for field in names):
        return None
    return f"generation_config.{CONFIG_NAMES[name]}"


def _grammar_path(request: Translated, rest: str) -> str:
    """The path of the parameter that a grammar came from."""
    older = next((name for name in OLD_NAMES if getattr(request, name, None) is not None), None)
    if older is not None:
        return older
    form = getattr(request, "response_format", None)
    if getattr(request, "structured_outputs", None) is not None or form is None:
        return f"structured_outputs{rest}"
    return "response_format.json_schema.schema" if form.type == "json_schema" else "response_format"


def _in_tools(tools: list[dict[str, Any]] | None, rest: str) -> str:
    """The path within a chat's tools of one within a response's, whose tools are flat."""
    match = _INDEXED.match(rest)
    if match is None or match[2] in ("", "type"):
        return rest
    index, path = int(match[1]), match[2]
    tool = (tools or [])[index]
    kind = tool.get("type")
    if path.partition(".")[0] == kind:
        return rest
    inner = tool.get(str(kind))
    form = inner.get("format") if isinstance(inner, dict) else None
    if path.startswith("format.") and isinstance(form, dict):
        field = path.removeprefix("format.")
        path = path if field in form or field == "type" else f"format.grammar.{field}"
    return f"[{index}].{kind}.{path}"


def _in_choice(choice: Any, rest: str) -> str:
    """The path within a chat's `tool_choice` of one within a response's, which is flat."""
    if not isinstance(choice, dict) or not rest:
        return rest
    if isinstance(allowed := choice.get("allowed_tools"), dict):
        if (match := _INDEXED.match(rest.removeprefix(".tools"))) and isinstance(allowed.get("tools"), list):
            inner = _in_choice(allowed["tools"][int(match[1])], f".{match[2]}" if match[2] else "")
            return f".allowed_tools.tools[{match[1]}]{inner}"
        return f".allowed_tools{rest}"
    kind = choice.get("type")
    nested = rest == ".name" and kind in ("function", "custom") and "name" not in choice
    return f".{kind}{rest}" if nested else rest
