"""`generation_config` of a request: transformers' sampling fields as the request's own parameters. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from server.errors import InvalidRequest
from server.protocol.completions.requests import CompletionParameters
from server.protocol.decode import convert, decode_as
from server.protocol.responses.request import CreateResponse, TokenId

PARAM = "generation_config"

Named = TypeVar("Named", bound=CreateResponse | CompletionParameters)


class GenerationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Null leaves the request's default. The last five do not affect sampling and are ignored."""

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


_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
}


def with_generation_config(request: Named, limit: str) -> Named:
    """The request with its generation config's values for the parameters that it leaves null.

    `limit` is the request's parameter for max_new_tokens. Raises DecodeFailure or InvalidRequest.
    """
    if request.generation_config is None:
        return request
    config = _read(request.generation_config)
    values: dict[str, Any] = {name: getattr(config, theirs) for theirs, name in _NAMES.items()}
    if config.do_sample is False:
        values["temperature"] = 0.0
    elif config.do_sample and config.temperature is None:
        values["temperature"] = 1.0  # transformers' default with do_sample, not the model's
    values[limit] = config.max_new_tokens
    ends = config.eos_token_id
    values["stop_token_ids"] = [ends] if isinstance(ends, int) else ends
    missing = {name: value for name, value in values.items() if getattr(request, name) is None}
    return msgspec.structs.replace(request, **missing, generation_config=None)


def _read(fields: str | Mapping[str, Any]) -> GenerationConfig:
    if isinstance(fields, str):
        try:
            fields = decode_as(fields, dict[str, Any])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidRequest(
                "generation_config is an object, or the JSON of one.", param=PARAM, code="invalid_json"
            ) from error
    for name in fields:
        if name not in GenerationConfig.__struct_fields__:
            raise InvalidRequest(
                f"{name[:100]!r} cannot be set in a generation_config here.",
                param=f"{PARAM}.{name[:100]}",
                code="unsupported_parameter",
            )
    config: GenerationConfig = convert(fields, GenerationConfig, PARAM)
    return config
