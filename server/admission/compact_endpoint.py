"""POST /v1/responses/compact: a long conversation as retained messages and one sealed item for the rest.

Messages of users, systems and developers are retained, the newest first, up to half of the model's context;
calls that wait for their output are retained too. The rest is summarised: by the model if it is long, in a
response that is not stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import msgspec

from server.admission.request_validation import validate_request
from server.caller import Caller
from server.delivery.image_urls import items_with_image_urls
from server.errors import InvalidRequest
from server.limits.tenant_limits import HistoryReads
from server.prompting.compaction_items import (
    RETAINED_SHARE,
    Summary,
    dividing,
    pending_calls,
    retained_messages,
    settings_items,
    transcript,
)
from server.prompting.served_model import LoadedModel
from server.protocol import ids
from server.protocol.decode import decode_as
from server.protocol.list_pages import MAX_BYTES
from server.protocol.responses.items import Compaction, Item, Message, images_of, plain_text
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import CompactedResponse, Usage, make_usage
from server.request_input.resolve_input import read_request_input, reading_input, with_own_id
from server.sealing.sealed_items import keep_approval_tag, unseal_items
from server.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRun:
    """The model's summary and the tokens that it took."""

    text: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCompaction:
    """A conversation divided for its compaction; the model's summary may be missing yet."""

    id: UUID
    retained: Sequence[Item]
    pending: Sequence[Item]
    """Calls without an output, which follow the compaction item."""
    summary: Summary

    def finish(self, written: SummaryRun | None) -> CompactedResponse:
        """The compacted conversation. `written` is the model's summary, None if the transcript is short."""
        text = self.summary.text(written.text if written else "")
        item_id = ids.item_id("cmp", self.id, "o", len(self.retained))
        sealed = self.summary.served.seal.seal("compaction", self.summary.tenant, item_id, text)
        items = [*self.retained, Compaction("", "completed", sealed), *self.pending]
        return CompactedResponse(
            id=ids.response_id(self.id),
            created_at=ids.unix_seconds(self.id),
            output=[self._own(item, index) for index, item in enumerate(items)],
            usage=written.usage if written else make_usage(0, 0, 0, 0),
        )

    def _own(self, item: Item, index: int) -> Item:
        own = with_own_id(item, self.id, "o", index)
        return keep_approval_tag(self.summary.served.seal, self.summary.tenant, item, own, stored=True)


def start_compaction(
    database: Database, served: LoadedModel, caller: Caller, request: CreateResponse, history: HistoryReads
) -> PendingCompaction:
    """Resolve the input and divide it. Raises ApiError."""
    validate_request(caller, request, served)
    tenant, compaction_id = caller.tenant, ids.new_uuid()
    request, input_items = read_request_input(request)

    with reading_input(database, history, served, tenant, request, input_items, compaction_id) as resolved:
        divided = _divide(served, tenant, request, resolved.items, compaction_id)
    if not any(part.content for item in divided.retained for part in images_of(item)):
        return divided
    whole = database.read(
        lambda connection: items_with_image_urls(connection, tenant, divided.retained, MAX_BYTES)
    )
    return replace(divided, retained=whole)


def _divide(
    served: LoadedModel, tenant: str, request: CreateResponse, items: Sequence[Item], compaction_id: UUID
) -> PendingCompaction:
    if not items:
        raise InvalidRequest(
            "There is nothing to compact: give input or previous_response_id.", param="input"
        )
    length = served.model_info.context_length
    items = unseal_items(items, served.seal, tenant)
    with dividing(served, tenant, items):
        retained = [*settings_items(items), *retained_messages(served, items, length // RETAINED_SHARE)]
        pending = pending_calls(items)
        retained_ids = {item.id for item in [*retained, *pending]}
        written = transcript(items, retained_ids)
    return PendingCompaction(
        id=compaction_id,
        retained=retained,
        pending=pending,
        summary=Summary(
            served=served,
            tenant=tenant,
            request=request,
            response=compaction_id,
            transcript=written,
            context=length,
        ),
    )


class _Final(msgspec.Struct):
    output: list[Item]
    usage: Usage


def read_summary(final: bytes) -> SummaryRun:
    """The model's summary from its final response; empty if that failed."""
    response = decode_as(final, _Final)
    texts = [plain_text(item.content) for item in response.output if isinstance(item, Message)]
    return SummaryRun(text="\n".join(texts), usage=response.usage)
