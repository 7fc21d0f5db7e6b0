"""The prompt of a response: bounds checked, items unsealed, written by the model format, truncated."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from server.errors import InvalidRequest
from server.limits.tools_and_grammars import (
    MAX_COUNTED_CONTEXTS,
    characters_of,
    check_tools_and_grammars,
    too_long,
    too_long_to_count,
)
from server.model_formats.interface import Prompt, PromptError, PromptTooLong
from server.prompting.conversation import make_conversation
from server.prompting.loaded_model import LoadedModel
from server.prompting.structured_output.structured_outputs import structured_output_grammar
from server.prompting.truncation import truncate_tokens, write_within
from server.protocol.completions.requests import PlainRequest
from server.protocol.ids import unix_seconds
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.tools import Tool
from server.sealing.sealed_items import unseal_items


def write_prompt(
    served: LoadedModel,
    tenant: str,
    request: CreateResponse,
    tools: Sequence[Tool],
    items: Sequence[Item],
    moment: datetime | None = None,
    *,
    max_tokens: int | None = None,
) -> Prompt:
    """The prompt of a response that was created at `moment`, for templates that show the date.

    With `truncation: "auto"` it has the newest turns that leave room for an answer. `max_tokens` replaces the
    model's context as the limit where tokens are only counted. Raises ApiError or DecodeFailure for what
    cannot be written, and for a longer prompt.
    """
    context = served.engine.model_info.context_length
    grammar = structured_output_grammar(request)
    unsealed = unseal_items(items, served.seal, tenant)
    conversation = make_conversation(request, tools, unsealed, moment)
    check_tools_and_grammars(conversation, grammar)
    if isinstance(request, PlainRequest):
        stops = served.engine.model_info.stop_ids
        return Prompt(token_ids=request.token_ids, stop_ids=stops, grammar=grammar)
    limit, truncates = context - 1 if max_tokens is None else max_tokens, request.truncation == "auto"
    if request.truncate_prompt_tokens is not None and not truncates:
        limit = max(limit, MAX_COUNTED_CONTEXTS * context)
    try:
        with served.long_prompts.slot(tenant, characters_of(conversation)):
            prompt = write_within(served.model_format, conversation, limit, truncates=truncates)
        token_ids = truncate_tokens(
            prompt.token_ids,
            request.truncate_prompt_tokens,
            request.truncation_side,
            context=context,
            max_output=request.max_output_tokens,
        )
        return replace(prompt, token_ids=token_ids)
    except PromptError as error:
        raise InvalidRequest(str(error), param=error.param) from error
    except PromptTooLong as error:
        raise (too_long(context) if max_tokens is None else too_long_to_count(error.limit)) from error


def moment_of(response: UUID) -> datetime:
    """When a response was created, in UTC, to the second: from the time in its id."""
    return datetime.fromtimestamp(unix_seconds(response), UTC)
