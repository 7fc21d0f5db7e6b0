"""Validation of a create request: unsupported values and combinations that its types allow.

New requests are checked, stored ones are not. `protocol.parameter_table` refuses unknown parameters. Pure.
"""

from collections.abc import Callable

from server.errors import InvalidRequest, UnknownModel
from server.prompting.completion_params import check_format_name
from server.prompting.loaded_model import LoadedModel
from server.prompting.output_options import wants_logprobs
from server.protocol.responses.request import CreateResponse

COMPACTION = "compaction"
_MAX_CHARACTERS = {"user": 512, "include": 128, "service_tier": 64, "safety_identifier": 64}
"""Of strings that are stored as sent. Not in the types, which also decode requests stored earlier."""

_UNSUPPORTED: list[tuple[str, Callable[[CreateResponse], object], str]] = [
    (
        "context_management",
        lambda r: any(entry.type != COMPACTION for entry in r.context_management or ()),
        "The one type of context_management that there is is compaction.",
    ),
    (
        "expires_after",
        lambda r: r.expires_after and r.store is False,
        "A response that is not stored cannot expire; leave out expires_after, or store it.",
    ),
    (
        "logprob_token_ids",
        lambda r: r.logprob_token_ids and not wants_logprobs(r),
        "Log probabilities of these tokens are told where log probabilities are asked for at all.",
    ),
]

_INVALID: list[tuple[str, Callable[[CreateResponse], object], str]] = [
    ("cache_salt", lambda r: r.cache_salt == "", "A cache_salt has one character at least; leave it out."),
    (
        "previous_input_messages",
        lambda r: (
            r.previous_input_messages is not None
            and (r.previous_response_id is not None or r.conversation is not None)
        ),
        "Give previous_input_messages or a response or conversation to go on from, not both.",
    ),
    (
        "structured_outputs",
        lambda r: r.structured_outputs is not None and _has_format(r),
        "Give structured_outputs or a format of text, not both.",
    ),
    (
        "structured_outputs",
        lambda r: r.structured_outputs is not None and _names_tool(r),
        "Give structured_outputs or the tool that must be called, not both.",
    ),
]


def validate_request(request: CreateResponse, served: LoadedModel) -> None:
    """Raises InvalidRequest as `refuse_unsupported` and for a chat_template, UnknownModel for the model."""
    if request.chat_template is not None and not served.trusts_templates:
        raise InvalidRequest(
            "This server's operator does not let requests bring a chat_template; the model's own is used.",
            param="chat_template",
            code="unsupported_parameter",
        )
    refuse_unsupported(request)
    if request.model not in served.names:
        raise UnknownModel(request.model, served.names)


def refuse_unsupported(request: CreateResponse) -> None:
    """Raises InvalidRequest with the first parameter that cannot be honoured."""
    for param, asks, sentence in _UNSUPPORTED:
        if asks(request):
            raise InvalidRequest(sentence, param=param, code="unsupported_parameter")
    for param, asks, sentence in _INVALID:
        if asks(request):
            raise InvalidRequest(sentence, param=param, code="invalid_value")
    _check_string_lengths(request)
    output_format = request.text.format if request.text else None
    if output_format is not None and output_format.type == "json_schema":
        check_format_name(output_format.name, "text.format.name")


def _check_string_lengths(request: CreateResponse) -> None:
    for param, most in _MAX_CHARACTERS.items():
        value = getattr(request, param)
        words = value if isinstance(value, list) else [value or ""]
        if any(len(word) > most for word in words):
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
