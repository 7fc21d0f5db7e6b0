"""A compaction within a response: its context is made short before the answer, and the stream tells of it.

OpenAI's `context_management`: when the prompt has more tokens than the threshold, the first item of the
output is a sealed compaction, which stands for everything before it, and what is generated goes on from that.
A `compaction_trigger` at the end of the input asks for the item alone. A long context is summed up by the
model in the response's first turn; a short one is told as it is, and there is no such turn. A response that
begins with calls which its input allows is not compacted: the one after it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import msgspec

from server.compaction.retained_items import newest_results, pending_calls, retained_messages
from server.compaction.summary import KEPT_SHARE, Summary
from server.compaction.transcript import transcript
from server.errors import InvalidRequest
from server.generation.output_decoding import CompactionSpec, DecodingSpec
from server.hosted_tools.tool_specs import approved
from server.input_resolution.resolve_input import TRIGGER
from server.limits.tools_and_grammars import COUNTED
from server.prompting.engine_request import Prepared, prepare, prepared_with
from server.prompting.loaded_model import LoadedModel
from server.prompting.prompt import moment_of, write_prompt
from server.protocol.responses.items import InputText, Item, Message, plain_text
from server.protocol.responses.request import CreateResponse
from server.sealing.sealed_context import SealedContext, seal_context
from server.sealing.unseal_items import unseal_items

DEFAULT_SHARE = 0.75
"""Of the model's context, where a request gives no threshold."""


def prepare_first(
    served: LoadedModel,
    tenant: str,
    request: CreateResponse,
    items: Sequence[Item],
    response: UUID,
    seed: int,
) -> Prepared:
    """A response's first turn: of its compaction, if the model is to write that, else of its answer.

    Raises ApiError or DecodeFailure for what cannot be run.
    """
    begin = _Beginning(served, tenant, request, response, seed)
    asked = request.context_management
    if asked is None:
        return begin.answer(items)
    context = served.engine.model_info.context_length
    threshold = min(one.compact_threshold or int(context * DEFAULT_SHARE) for one in asked)
    triggered = any(one.type == TRIGGER for one in asked)
    if approved(items):
        if triggered:
            raise InvalidRequest(
                "A compaction_trigger asks for the compaction alone, and a call that is allowed is made "
                "first: give the approval in a request before this one.",
                param="input",
            )
        return begin.answer(items)  # its first turn is that of the calls
    uncut = msgspec.structs.replace(request, truncation=None)
    room = min(max(threshold, context), COUNTED * context)
    try:
        length = len(write_prompt(served, tenant, uncut, items, moment_of(response), room=room).token_ids)
    except InvalidRequest as refused:
        if refused.code != "context_length_exceeded":
            raise
        length = room + 1  # or more: what matters is that it is too long
    if length <= threshold and not triggered:
        return begin.answer(items)
    window, summary = begin.divide(items, min(context, threshold))
    answer = begin.answer(window(summary.told("")).items(""))
    if not triggered and (not summary.transcript or len(answer.prompt.token_ids) >= length):
        return begin.answer(items)  # there is nothing to win
    return begin.condensed(answer, window, summary, answers=not triggered)


@dataclass(frozen=True, slots=True)
class _Beginning:
    served: LoadedModel
    tenant: str
    request: CreateResponse
    response: UUID
    seed: int

    def answer(self, items: Sequence[Item]) -> Prepared:
        return prepare(self.served, self.tenant, self.request, items, self.response, self.seed)

    def divide(self, items: Sequence[Item], context: int) -> tuple[Callable[[str], SealedContext], Summary]:
        """What the context becomes with a summary, and what is to be summed up."""
        readable = unseal_items(items, self.served.seal, self.tenant)
        start = _last_question(readable)
        most = context // KEPT_SHARE
        kept = [
            *retained_messages(self.served, readable, most),
            *readable[start : start + 1],
            *newest_results(self.served, readable[start:], most),
            *pending_calls(readable),
        ]
        told_already = {item.id for item in kept}
        places = [place for place, item in enumerate(readable) if item.id in told_already]
        before = [_as_text(readable[place]) for place in places if place < start]
        after = [_as_text(readable[place]) for place in places if place >= start]
        summary = Summary(
            served=self.served,
            tenant=self.tenant,
            request=self.request,
            transcript=transcript(readable, told_already),
            context=context,
        )
        return lambda text: SealedContext(before, text, after), summary

    def condensed(
        self, answer: Prepared, window: Callable[[str], SealedContext], summary: Summary, *, answers: bool
    ) -> Prepared:
        """The first turn of a response that begins with a compaction."""

        def seal(place: str, written: str) -> str:
            return seal_context(window(summary.told(written)), self.served.seal, self.tenant, place)

        condensing = CompactionSpec(seal, by_model=not summary.is_short, answers=answers)
        if not condensing.by_model:
            return replace(answer if answers else answer.read_only(), condensing=condensing)
        asked, prompt = summary.asked(moment_of(self.response))
        turn = prepared_with(self.served, self.tenant, asked, prompt, self.response, self.seed)
        return replace(
            answer,
            prompt=turn.prompt,
            engine_request=turn.engine_request,
            condensing=condensing,
            next_engine_request=answer.engine_request,
        )


def _last_question(items: Sequence[Item]) -> int:
    """Where what is to be answered begins: at the last user's message, unless it has been answered."""
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if isinstance(item, Message) and item.role == "user":
            return place
        if isinstance(item, Message) and item.role == "assistant":
            break
    return len(items)


def _as_text(item: Item) -> Item:
    """A message as the model reads it, so that a sealed one holds no images."""
    if not isinstance(item, Message) or item.role == "assistant":
        return item
    return msgspec.structs.replace(item, content=[InputText(plain_text(item.content))])


def first_reading(
    served: LoadedModel, tenant: str, request: CreateResponse, prepared: Prepared, items: Sequence[Item]
) -> DecodingSpec:
    """How the tokens of a response's first turn are read. The items may allow calls that come before it."""
    allowing = items if prepared.generates else ()
    reading = served.reading(tenant, request, prepared.prompt, allowing)
    reading = replace(reading, condensing=prepared.condensing)
    if not prepared.sums_up:
        return reading
    none: frozenset[int] = frozenset()
    return replace(reading, stops=(), stop_token_ids=none, silent_stop_ids=none, vocabulary=None)
