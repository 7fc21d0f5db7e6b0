"""A long conversation as a short one: what users and developers said, and one sealed item for all the rest.

Messages of users, systems and developers stay as they are, as far as they fit into half of what the model
can read, the newest first; calls that wait for their output stay too. Everything else is summed up, by the
model, if that is long, in one response that is not stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import msgspec

from server.compaction.retained_items import pending_calls, retained_messages
from server.compaction.summary import KEPT_SHARE, Summary
from server.compaction.transcript import transcript
from server.errors import InvalidRequest
from server.input_resolution import resolve_input
from server.input_resolution.history import HistoryReads, TenantReads
from server.input_resolution.mcp_approvals import taken_over
from server.prompting.loaded_model import LoadedModel
from server.prompting.unsupported_parameters import refuse_unserved
from server.protocol import ids
from server.protocol.responses.items import Compaction, Item, Message, plain_text
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import CompactedResponse, Usage, usage
from server.protocol.typed import decode_as
from server.sealing.unseal_items import unseal_items
from server.store.database import Connection, Database


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRun:
    """What the model made of the transcript, and what that took."""

    text: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCompaction:
    """What a conversation is to become."""

    id: UUID
    kept: Sequence[Item]
    pending: Sequence[Item]
    """Calls without an output."""
    summary: Summary

    def made(self, written: SummaryRun | None) -> CompactedResponse:
        """The new input. `written` is there if the transcript was too long."""
        text = self.summary.told(written.text if written else "")
        place = ids.item_id("cmp", self.id, "o", len(self.kept))
        sealed = self.summary.served.seal.seal("compaction", self.summary.tenant, place, text)
        items = [*self.kept, Compaction("", "completed", sealed), *self.pending]
        return CompactedResponse(
            id=ids.response_id(self.id),
            created_at=ids.seconds_of(self.id),
            output=[self._own(item, index) for index, item in enumerate(items)],
            usage=written.usage if written else usage(0, 0, 0, 0),
        )

    def _own(self, item: Item, index: int) -> Item:
        own = resolve_input.with_own_id(item, self.id, "o", index)
        return taken_over(self.summary.served.seal, self.summary.tenant, item, own, stored=True)


def begin(
    database: Database, served: LoadedModel, tenant: str, request: CreateResponse, history: HistoryReads
) -> PendingCompaction:
    """Looks up and divides what is to be compacted. Raises ApiError or DecodeFailure."""
    refuse_unserved(request, served)
    made = ids.new_uuid()
    request, given = resolve_input.read_given(request)

    def gather(connection: Connection, reads: TenantReads) -> resolve_input.ResolvedInput:
        reads.start_over()
        return resolve_input.resolve_input(
            connection, tenant, request, given, made, served.seal, reserve=reads.reserve
        )

    with history.of(tenant) as reads:
        found = database.read(partial(gather, reads=reads))
        return _divide(served, tenant, request, found, made)


def _divide(
    served: LoadedModel, tenant: str, request: CreateResponse, found: resolve_input.ResolvedInput, made: UUID
) -> PendingCompaction:
    if not found.items:
        raise InvalidRequest(
            "There is nothing to compact: give input or previous_response_id.", param="input"
        )
    length = served.engine.model_info.context_length
    items = unseal_items(found.items, served.seal, tenant)
    kept = retained_messages(served, items, length // KEPT_SHARE)
    pending = pending_calls(items)
    told_already = {item.id for item in [*kept, *pending]}
    return PendingCompaction(
        id=made,
        kept=kept,
        pending=pending,
        summary=Summary(
            served=served,
            tenant=tenant,
            request=request,
            transcript=transcript(items, told_already),
            context=length,
        ),
    )


class _Final(msgspec.Struct):
    output: list[Item]
    usage: Usage


def read_written(final: bytes) -> SummaryRun:
    """The model's summary from the response that it came in; empty if it failed."""
    told = decode_as(final, _Final)
    said = [plain_text(item.content) for item in told.output if isinstance(item, Message)]
    return SummaryRun(text="\n".join(said), usage=told.usage)
