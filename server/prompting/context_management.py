"""`context_management`: a response that compacts its context, before its first turn and between turns.

If the prompt of a turn has more tokens than the threshold, a sealed compaction is put out before the turn. It
stands for everything before it, and the model goes on from it. A `compaction_trigger` at the end of the input
asks for that item alone. A long context is summarised by the model in a turn of its own; a short transcript
is its own summary. Calls that the input approves are made on the whole context; it is compacted after them.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from server.errors import InvalidRequest
from server.generation.hosted_tools_of_response import approved_calls
from server.generation.output_decoding import CompactionSpec
from server.model_formats.model_format import Prompt
from server.prompting.compaction_items import (
    RETAINED_SHARE,
    Summary,
    dividing,
    newest_results,
    pending_calls,
    retained_messages,
    settings_items,
    transcript,
)
from server.prompting.engine_request import Prepared, prepare, prepare_from_prompt
from server.prompting.prompt_limits import MAX_COUNTED_CONTEXTS
from server.prompting.served_model import LoadedModel
from server.prompting.write_prompt import ResolvedRequest, write_prompt
from server.protocol.responses.items import Compaction, InputText, Item, Message, plain_text, with_images
from server.protocol.responses.request import COMPACTION_TRIGGER, ContextManagement
from server.sealing.sealed_items import SealedContext, seal_context, unseal_items

DEFAULT_SHARE = 0.75
"""The threshold, as a share of the model's context, where a request gives none."""
LOOP_SHARE = 4
"""Between turns, retained messages and results have 1/4 of the threshold each, so that beside a summary some
turns fit in before the next compaction. A newest result that is longer has half of it."""


def prepare_with_compaction(
    served: LoadedModel, resolved: ResolvedRequest, settings: Sequence[ContextManagement]
) -> Prepared:
    """The first turn of a response with `context_management`: the summary's if it has one, else the answer's.

    Raises ApiError as `prepare` does.
    """
    if resolved.request.prewarms:
        return prepare(served, resolved)
    triggered = any(entry.type == COMPACTION_TRIGGER for entry in settings)
    if approved_calls(resolved.items):
        if triggered:
            raise InvalidRequest(
                "A compaction_trigger asks for the compaction alone, and a call that is allowed is made "
                "first: give the approval in a request before this one.",
                param="input",
            )
        return prepare(served, resolved)
    return _prepare_compacted(served, resolved, settings, triggered=triggered)


def prepare_later_turn(served: LoadedModel, resolved: ResolvedRequest) -> Prepared:
    """A turn of a response whose `resolved.items` end with its own output: of a summary, or of an answer.

    A compaction that needs no turn of the model is a turn, too. Decided from the request and the items alone,
    so that a resumed response has the same turns. Raises ApiError as `prepare` does.
    """
    settings = resolved.request.context_management
    if not settings or isinstance(resolved.items[-1], Compaction):
        return prepare(served, resolved)
    return _prepare_compacted(served, resolved, settings, in_loop=True)


def _prepare_compacted(
    served: LoadedModel,
    resolved: ResolvedRequest,
    settings: Sequence[ContextManagement],
    *,
    triggered: bool = False,
    in_loop: bool = False,
) -> Prepared:
    """The turn that compacts a context above the threshold; the answer's if there is nothing to gain."""
    context = served.model_info.context_length
    threshold = min(entry.compact_threshold or int(context * DEFAULT_SHARE) for entry in settings)
    limit = min(max(threshold, context), MAX_COUNTED_CONTEXTS * context)
    whole = _whole_prompt(served, resolved, limit)
    length = limit + 1 if whole is None else len(whole.token_ids)
    if length <= threshold and not triggered:
        if whole is None or resolved.request.truncation == "auto":
            return prepare(served, resolved)
        return prepare_from_prompt(served, resolved, whole)
    compaction = _Compaction(served, resolved, min(context, threshold), in_loop=in_loop)
    answer = compaction.answer
    if not triggered and (not compaction.summary.transcript or len(answer.prompt.token_ids) >= length):
        return prepare(served, resolved)  # the compacted context is no shorter
    return compaction.turn(answer, answers=not triggered)


def _whole_prompt(served: LoadedModel, resolved: ResolvedRequest, limit: int) -> Prompt | None:
    """The prompt with all items; None for one of more than `limit` tokens."""
    untruncated = msgspec.structs.replace(resolved.request, truncation=None)
    try:
        return write_prompt(served, replace(resolved, request=untruncated), max_tokens=limit)
    except InvalidRequest as refused:
        if refused.code != "context_length_exceeded":
            raise
        return None


class _Compaction:
    """A context divided into items that stay and a transcript that is summarised."""

    def __init__(
        self, served: LoadedModel, resolved: ResolvedRequest, context: int, *, in_loop: bool
    ) -> None:
        """`context` is the number of tokens that the compacted context may have; `in_loop`: between turns."""
        self._served = served
        self._resolved = resolved
        items = unseal_items(resolved.items, served.seal, resolved.tenant)
        start = _unanswered_from(items, in_loop=in_loop)
        limit = context // (LOOP_SHARE if in_loop else RETAINED_SHARE)
        with dividing(served, resolved.tenant, items):
            retained = [
                *settings_items(items),
                *retained_messages(served, items, limit),
                *(item for item in items[start : start + 1] if isinstance(item, Message)),
                *newest_results(served, items[start:], limit, context // RETAINED_SHARE),
                *pending_calls(items),
            ]
        retained_ids = {item.id for item in retained}
        self._before = [_text_only(item) for item in items[:start] if item.id in retained_ids]
        self._after = [_text_only(item) for item in items[start:] if item.id in retained_ids]
        self.summary = Summary(
            served=served,
            tenant=resolved.tenant,
            request=resolved.request,
            response=resolved.response,
            transcript=transcript(items, retained_ids),
            context=context,
        )

    def _context(self, written: str) -> SealedContext:
        return SealedContext(self._before, self.summary.text(written), self._after)

    @property
    def answer(self) -> Prepared:
        """The turn that answers, with a summary cut from the transcript in place of the model's."""
        return prepare(
            self._served, replace(self._resolved, items=self._context("").items(""), dropped_items=0)
        )

    def turn(self, answer: Prepared, *, answers: bool) -> Prepared:
        """The turn that compacts; with `answers` false the response ends with the compaction."""
        served, resolved = self._served, self._resolved

        def seal(item_id: str, written: str) -> str:
            return seal_context(self._context(written), served.seal, resolved.tenant, item_id)

        spec = CompactionSpec(seal, by_model=not self.summary.is_short, answers=answers)
        if not spec.by_model:
            return replace(answer if answers else answer.without_output(), compaction=spec)
        request, prompt = self.summary.make_request()
        summary_turn = prepare_from_prompt(served, replace(resolved, request=request, tools=()), prompt)
        return replace(
            answer,
            prompt=summary_turn.prompt,
            prompt_hash=summary_turn.prompt_hash,
            engine_request=summary_turn.engine_request,
            compaction=spec,
            next_engine_request=answer.engine_request,
        )


def _unanswered_from(items: Sequence[Item], *, in_loop: bool) -> int:
    """The index of the last user message without an assistant's answer after it; else the number of items."""
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        if isinstance(item, Message) and item.role == "user":
            return index
        if isinstance(item, Message) and item.role == "assistant" and not in_loop:
            break
    return 0 if in_loop else len(items)


def _text_only(item: Item) -> Item:
    """A message or a tool's output with its text alone: a sealed item carries no images."""
    if isinstance(item, Message) and item.role != "assistant":
        return msgspec.structs.replace(item, content=[InputText(plain_text(item.content))])
    return with_images(item, lambda image: InputText(plain_text([image])))
