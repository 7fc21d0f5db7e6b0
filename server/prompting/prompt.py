"""The prompt of a response: bounds checked, items unsealed, written by the model format, truncated."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from server.errors import InvalidRequest
from server.limits.tools_and_grammars import (
    COUNTED,
    characters_of,
    refuse_unbounded,
    too_long,
    too_long_to_count,
)
from server.model_formats.interface import Prompt, PromptError, PromptTooLong
from server.prompting.conversation import make_conversation
from server.prompting.loaded_model import LoadedModel
from server.prompting.structured_outputs import structured_output_grammar
from server.prompting.truncation import cut_tokens, write_within
from server.protocol.completions.legacy import PlainRequest
from server.protocol.ids import seconds_of
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse
from server.sealing.unseal_items import unseal_items


def write_prompt(
    served: LoadedModel,
    tenant: str,
    request: CreateResponse,
    items: Sequence[Item],
    moment: datetime | None = None,
    *,
    room: int | None = None,
) -> Prompt:
    """The prompt of a response that was asked for at that moment.

    With truncation, of as much of the conversation's end as leaves room for an answer. `room` is how many
    tokens are counted, in place of as many as the model can read. Raises ApiError or DecodeFailure for what
    cannot be written, or has more tokens.
    """
    context = served.engine.model_info.context_length
    given = structured_output_grammar(request)
    readable = unseal_items(items, served.seal, tenant)
    conversation = make_conversation(request, readable, moment)
    refuse_unbounded(conversation, given)
    if isinstance(request, PlainRequest):
        stops = served.engine.model_info.stop_ids
        return Prompt(token_ids=request.token_ids, stop_ids=stops, grammar=given)
    limit, truncates = context - 1 if room is None else room, request.truncation == "auto"
    if request.truncate_prompt_tokens is not None and not truncates:
        limit = max(limit, COUNTED * context)
    try:
        with served.reading_turns.hold(tenant, characters_of(conversation)):
            prompt = write_within(served.dialect, conversation, limit, truncates=truncates)
        most, side = request.truncate_prompt_tokens, request.truncation_side
        kept = cut_tokens(prompt.token_ids, most, side, context=context, asked=request.max_output_tokens)
        return replace(prompt, token_ids=kept)
    except PromptError as error:
        raise InvalidRequest(str(error), param=error.param) from error
    except PromptTooLong as error:
        raise (too_long(context) if room is None else too_long_to_count(error.limit)) from error


def moment_of(response: UUID) -> datetime:
    """When a response was asked for, to the second."""
    return datetime.fromtimestamp(seconds_of(response), UTC)
