"""Validation of a create request, after its types: unsupported values, combinations, the model, the priority.

Also older names and `generation_config`, whose fields become the request's own parameters, and errors that
name the field that the caller sent, where chats and completions are run as responses. New requests are
checked, stored ones are not. `server.protocol.parameter_support` refuses unknown parameters. Pure.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from server.caller import Caller
from server.errors import ApiError, InvalidRequest, ModelNotAllowed, UnknownModel
from server.prompting.engine_request import wants_logprobs
from server.prompting.served_model import LoadedModel
from server.prompting.structured_outputs import OLD_NAMES, with_modern_names
from server.protocol.completions.requests import CompletionParameters, TextRequest, TokenizeRequest
from server.protocol.decode import convert, decode_as
from server.protocol.error_object import invalid_value, unsupported_parameter
from server.protocol.responses.request import INCLUDABLE, CreateResponse, TokenId, check_format_name

COMPACTION = "compaction"
MAX_CHARACTERS = {"user": 512, "service_tier": 64, "safety_identifier": 128, "stop": 512}
"""The longest strings that requests may have. Not in the types, which also decode stored requests."""
_WINDOW = "background_options.completion_window"
_RULES: list[tuple[str, str, Callable[[CreateResponse], object], str]] = [
    (
        _WINDOW,
        "invalid_value",
        lambda r: r.completion_window is not None and not r.background,
        "Only background responses have a completion_window of 2h or 8h: leave it out, or set background.",
    ),
    (
        _WINDOW,
        "invalid_value",
        lambda r: r.completion_window is not None and r.stream,
        "A response with a completion_window of 2h or 8h is not streamed: leave out one of the two.",
    ),
    (
        "priority",
        "invalid_value",
        lambda r: r.completion_window is not None and r.priority is not None,
        "A response with a completion_window of 2h or 8h runs after every other one: leave out priority.",
    ),
    (
        "context_management",
        "unsupported_parameter",
        lambda r: any(entry.type != COMPACTION for entry in r.context_management or ()),
        "The one type of context_management that there is is compaction.",
    ),
    (
        "expires_after",
        "unsupported_parameter",
        lambda r: r.expires_after and r.store is False,
        "A response that is not stored cannot expire; leave out expires_after, or store it.",
    ),
    (
        "image.context_compression",
        "unsupported_value",
        lambda r: r.image and r.image.context_compression == "enabled",
        "Pictures are not compressed in the context here: leave out image.context_compression.",
    ),
    (
        "reasoning.mode",
        "unsupported_value",
        lambda r: r.reasoning and r.reasoning.mode == "pro",
        "Models run in one way here: leave out reasoning.mode; reasoning.effort has them think longer.",
    ),
    (
        "logprob_token_ids",
        "unsupported_parameter",
        lambda r: r.logprob_token_ids and not wants_logprobs(r),
        "Log probabilities of these tokens are told where log probabilities are asked for at all.",
    ),
    (
        "stop",
        "invalid_value",
        lambda r: "" in ([r.stop] if isinstance(r.stop, str) else r.stop or ()),
        "A stop string has one character at least; leave out what is empty.",
    ),
    (
        "cache_salt",
        "invalid_value",
        lambda r: r.cache_salt == "",
        "A cache_salt has one character at least; leave it out.",
    ),
    (
        "previous_input_messages",
        "invalid_value",
        lambda r: (
            r.previous_input_messages is not None
            and (r.previous_response_id is not None or r.conversation is not None)
        ),
        "Give previous_input_messages or a response or conversation to go on from, not both.",
    ),
    (
        "structured_outputs",
        "invalid_value",
        lambda r: r.structured_outputs is not None and _has_format(r),
        "Give structured_outputs or a format of text, not both.",
    ),
    (
        "structured_outputs",
        "invalid_value",
        lambda r: r.structured_outputs is not None and _names_tool(r),
        "Give structured_outputs or the tool that must be called, not both.",
    ),
]
"""Parameter, code, condition and sentence of each error, in the order in which they are checked."""


def validate_request(caller: Caller, request: CreateResponse, served: LoadedModel) -> None:
    """Raises InvalidRequest as `refuse_unsupported` and for a chat_template; as `check_model` does."""
    if request.chat_template is not None and not served.trusts_templates:
        raise unsupported_parameter(
            "This server's operator does not let requests bring a chat_template; the model's own is used.",
            "chat_template",
        )
    refuse_unsupported(request)
    check_model(caller, request.model, served)


def check_model_of_key(caller: Caller, model: str) -> None:
    """Raises ModelNotAllowed for a model that the caller's key may not use."""
    if caller.models is not None and not caller.may_use_model(model):
        raise ModelNotAllowed(model)


def check_model(caller: Caller, model: str, served: LoadedModel) -> None:
    """Raises UnknownModel for a model that is not served, ModelNotAllowed for one that is not the key's."""
    check_model_of_key(caller, model)
    if model not in served.names:
        raise UnknownModel(model, caller.usable_models(served.names))


def refuse_unsupported(request: CreateResponse) -> None:
    """Raises InvalidRequest with the first parameter that cannot be honoured."""
    for param, code, applies, sentence in _RULES:
        if applies(request):
            raise InvalidRequest(sentence, param=param, code=code)
    _check_string_lengths(request)
    check_include(request.include or ())
    output_format = request.text.format if request.text else None
    if output_format is not None and output_format.type == "json_schema":
        check_format_name(output_format.name, "text.format.name")


def check_include(values: Sequence[str]) -> None:
    """Raises InvalidRequest for a value that is none of OpenAI's, since it may be a misspelt one."""
    unknown = next((value for value in values if value not in INCLUDABLE), None)
    if unknown is not None:
        raise invalid_value(
            f"Invalid value: {unknown[:100]!r}. Values of include are {', '.join(INCLUDABLE)}.", "include"
        )


def _check_string_lengths(request: CreateResponse) -> None:
    for param, most in MAX_CHARACTERS.items():
        value = getattr(request, param)
        strings = [value] if isinstance(value, str) else value
        if strings and any(len(string) > most for string in strings):
            raise InvalidRequest(
                f"A string in {param} may have {most} characters.",
                param=param,
                code="string_above_max_length",
            )


def refuse_empty(request: CreateResponse) -> None:
    """Raises InvalidRequest for `input: []` without any other input."""
    others = (
        request.previous_response_id,
        request.conversation,
        request.prompt,
        request.previous_input_messages,
    )
    if request.input == [] and all(other is None for other in others):
        raise InvalidRequest(
            "One of input, previous_response_id, prompt and conversation must be provided.",
            param="input",
            code="missing_required_parameter",
        )


def _has_format(request: CreateResponse) -> bool:
    output_format = request.text.format if request.text else None
    return output_format is not None and output_format.type != "text"


def _names_tool(request: CreateResponse) -> bool:
    choice = request.tool_choice
    return isinstance(choice, dict) and choice.get("type") != "allowed_tools"


def check_priority(caller: Caller, request: CreateResponse) -> None:
    """Raises InvalidRequest for a priority below the key's floor. Without keys there is one tenant."""
    if caller.key_id is None:
        return
    if request.priority is not None and request.priority < caller.priority_floor:
        raise invalid_value(
            f"priority must be at least {caller.priority_floor} with this API key, not {request.priority}: "
            "a lower number is more urgent, and a request may only be less urgent than others.",
            "priority",
        )


Named = TypeVar("Named", bound=CreateResponse | CompletionParameters)


class GenerationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Transformers' sampling fields; the last five do not affect sampling and are ignored.

    Null leaves the request's default.
    """

    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None
    min_new_tokens: Annotated[int, Meta(ge=0)] | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    stop_strings: str | Annotated[list[str], Meta(max_length=32)] | None = None
    eos_token_id: TokenId | Annotated[list[TokenId], Meta(max_length=128)] | None = None
    bos_token_id: Any = None
    pad_token_id: Any = None
    transformers_version: Any = None
    use_cache: Any = None
    _from_model_config: Any = None


_TOKEN_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_CONFIG_NAMES = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    **dict.fromkeys(_TOKEN_LIMITS, "max_new_tokens"),
    "min_tokens": "min_new_tokens",
    "stop": "stop_strings",
    "stop_token_ids": "eos_token_id",
}
"""The generation config's name of each parameter that it may set."""


def with_modern_parameters(request: CreateResponse) -> CreateResponse:
    """The request without vLLM's older names and without a generation config. Raises as these do."""
    if any(getattr(request, name) is not None for name in OLD_NAMES):
        request = with_modern_names(request)
    return with_generation_config(request, "max_output_tokens")


def with_generation_config(request: Named, limit: str) -> Named:
    """The request with its generation config's values for the parameters that it leaves null.

    `limit` is the request's parameter for max_new_tokens. Raises InvalidRequest.
    """
    if request.generation_config is None:
        return request
    config = _read_generation_config(request.generation_config)
    names = (name for name in _CONFIG_NAMES if name not in _TOKEN_LIMITS or name == limit)
    values: dict[str, Any] = {name: getattr(config, _CONFIG_NAMES[name]) for name in names}
    if config.do_sample is False:
        values["temperature"] = 0.0
    elif config.do_sample and config.temperature is None:
        values["temperature"] = 1.0  # transformers' default with do_sample, not the model's
    if isinstance(config.eos_token_id, int):
        values["stop_token_ids"] = [config.eos_token_id]
    missing = {name: value for name, value in values.items() if getattr(request, name) is None}
    return msgspec.structs.replace(request, **missing, generation_config=None)


def _read_generation_config(fields: str | Mapping[str, Any]) -> GenerationConfig:
    if isinstance(fields, str):
        try:
            fields = decode_as(fields, dict[str, Any])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidRequest(
                "generation_config is an object, or the JSON of one.",
                param="generation_config",
                code="invalid_json",
            ) from error
    for name in fields:
        if name not in GenerationConfig.__struct_fields__:
            raise unsupported_parameter(
                f"{name[:100]!r} cannot be set in a generation_config here.",
                f"generation_config.{name[:100]}",
            )
    config: GenerationConfig = convert(fields, GenerationConfig, "generation_config")
    return config


Translated = CompletionParameters | CreateResponse | TokenizeRequest
_FIRST_NAME = re.compile(r"([^.\[]*)(.*)", re.DOTALL)
_INDEXED = re.compile(r"\[(\d+)\]\.?(.*)", re.DOTALL)
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
def naming_sent_fields(request: Translated) -> Iterator[None]:
    """Has the errors of what is done with the request name its own fields, in `param` and in the sentence."""
    try:
        yield
    except ApiError as error:
        if error.param is not None and (own := sent_path(request, error.param)) != error.param:
            error.args = (_renamed(str(error), error.param, own),)
            error.param = own
        raise


def _renamed(sentence: str, path: str, own: str) -> str:
    """The sentence with the own path. A bare word may be one of the language, so it needs its quotes."""
    if "." in path or "[" in path:
        return sentence.replace(path, own)
    return sentence.replace(f"'{path}'", f"'{own}'")


def sent_path(request: Translated, path: str) -> str:
    """The path in the caller's body of a path in the request that it was translated to."""
    name, rest = _FIRST_NAME.match(path).groups()  # type: ignore[union-attr]  # matches any text
    if (configured := _in_generation_config(request, name)) is not None:
        return configured
    if name == "structured_outputs":
        return _grammar_path(request, rest)
    if isinstance(request, CreateResponse):
        return path
    if name == "max_output_tokens":
        return next(
            (limit for limit in _TOKEN_LIMITS if getattr(request, limit, None) is not None), "max_tokens"
        )
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
    names = _TOKEN_LIMITS if name in _TOKEN_LIMITS else (name,)
    if name not in _CONFIG_NAMES or any(getattr(request, field, None) is not None for field in names):
        return None
    return f"generation_config.{_CONFIG_NAMES[name]}"


def _grammar_path(request: Translated, rest: str) -> str:
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
