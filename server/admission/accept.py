"""The accept transaction: a response's row, input items, first events, idempotency key."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

import msgspec

from server.admission.idempotency import claim_key
from server.admission.prepare_runs import NewRun
from server.crashpoints import ARMED, crashpoint
from server.delivery.frames import FramePage
from server.delivery.hub import Channel
from server.generation.run import RunFacts
from server.hosted_tools.approved_calls import spend_approvals
from server.limits.tenant_limits import QueueLimits
from server.protocol.completions.requests import ChoiceRequest
from server.protocol.responses.events import Event, first_events
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse, Kind
from server.request_input.conversations_api import lock_conversation
from server.request_input.stored_input import removed_image, unknown_previous
from server.store.content import images, responses
from server.store.content.images import ImageRemoved
from server.store.content.item_rows import NewItem, stored_items_of
from server.store.content.responses import NewResponse
from server.store.database import Connection, Database
from server.store.database_errors import AlreadyThere

MAX_UNSTORED_LIFETIME = timedelta(days=1)
"""Lifetime of a background response with `store: false` whose end is not written in the usual way."""


@dataclass(frozen=True, slots=True)
class AcceptedResponse:
    """A response that was created, or found by its idempotency key."""

    id: UUID
    channel: Channel
    """Delivers its frames."""
    items: Sequence[Item] = ()
    """The model's input items, of a foreground response created here."""
    read_bytes: int = 0
    """Bytes of the stored items among them, as JSON."""
    begun: FramePage | None = None
    """The first frames of a queued response."""


@dataclass(frozen=True, slots=True)
class AcceptedRun:
    """A response that was just accepted, which has not begun."""

    facts: RunFacts
    events: Sequence[Event]
    """Its first events, committed with its row."""


class ConversationChanged(Exception):
    """Items were added to the conversation after the prompt was made from it."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The accept transaction. Any thread."""

    _database: Database
    _replica: UUID
    _retention_days: int
    _queue: QueueLimits

    def begin(self, runs: Sequence[NewRun]) -> list[AcceptedRun]:
        """The responses as they begin now, without a row."""
        created_at = self._database.now()
        facts = [_facts(new, created_at) for new in runs]
        return [AcceptedRun(of_run, first_events(of_run, of_run.echo)) for of_run in facts]

    def accept(self, runs: Sequence[NewRun]) -> list[AcceptedRun]:
        """Commits a request's responses, all or none. Raises KeyTaken, ConversationChanged and ApiError."""
        accepted = self.begin(runs)
        rows = iter(stored_items_of([item for new in runs for item in new.resolved_input.new]))
        written = [
            _Written(
                new, self._row(new, run.facts), list(islice(rows, len(new.resolved_input.new))), run.events
            )
            for new, run in zip(runs, accepted, strict=True)
        ]
        if len(written) > 1 or not written[0].is_one_statement:
            self._write(written)
        else:
            if ARMED:
                crashpoint("accept.written")  # the statement commits itself
            try:
                insert = responses.committing_insert(*written[0].content, self._replica)
                committed = self._database.scalar(*insert)
            except AlreadyThere:  # an earlier try, which was not confirmed, has committed
                committed = False
            if not committed:
                self._write(written, tries=1)
        if ARMED:
            crashpoint("accept.committed")
        return accepted

    def _write(self, written: Sequence["_Written"], *, tries: int = 0) -> None:
        """Writes the responses in one transaction, after that many tries that may have committed."""

        def write(connection: Connection) -> None:
            nonlocal tries
            tries += 1
            for response in written:
                self._write_one(connection, response, again=tries > 1)
            crashpoint("accept.written")

        try:
            self._database.retry(write)
        except AlreadyThere:  # an earlier try, which was not confirmed, committed after it was looked for
            if tries == 1:
                raise
            self._database.retry(write)

    def _write_one(self, connection: Connection, response: "_Written", *, again: bool) -> None:
        """`again` marks a retry: an earlier commit that was not confirmed is looked up."""
        new, tenant = response.new, response.new.caller.tenant
        if again and responses.get(connection, tenant, new.response):
            return
        background = response.row.facts.background
        if background:
            self._queue.check(connection, new.caller)
        claim_key(connection, new)
        spend_approvals(connection, tenant, new.approvals, new.response)
        if version := new.resolved_input.conversation:
            locked = lock_conversation(connection, tenant, version.id)
            if locked.next_position != version.next_position:
                raise ConversationChanged
        # The history was read before this transaction; from here on the row lock keeps it.
        replica = None if background else self._replica
        if not responses.insert(connection, *response.content, replica):
            raise unknown_previous(new.resolved.request.previous_response_id or "")
        insert_images(connection, tenant, new.response, response.input_items)

    def _row(self, new: NewRun, facts: RunFacts) -> NewResponse:
        request, echo, engine_request = new.resolved.request, new.prepared.echo, new.prepared.engine_request
        conversation = new.resolved_input.conversation
        # The input is stored as items, and instructions are in the echo.
        stored_request = msgspec.structs.replace(request, input="", instructions=None)
        own_days = new.caller.settings.retention_days
        return NewResponse(
            facts=facts,
            previous_id=new.resolved_input.previous_id,
            conversation_id=conversation.id if conversation else None,
            stream=bool(request.stream),
            priority=engine_request.priority,
            seed=engine_request.sampling.seed,
            prompt_hash=new.prepared.prompt_hash,
            request=msgspec.json.encode(echo).decode(),
            asked=msgspec.json.encode(stored_request).decode(),
            metadata=msgspec.json.encode(echo.metadata).decode(),
            choice=request.choice if isinstance(request, ChoiceRequest) else None,
            lifetime=lifetime(request, self._retention_days if own_days is None else own_days),
            weights=new.prepared.weights,
        )


@dataclass(frozen=True, slots=True)
class _Written:
    new: NewRun
    row: NewResponse
    input_items: Sequence[NewItem]
    events: Sequence[Event]

    @property
    def content(self) -> tuple[NewResponse, Sequence[NewItem], Sequence[Event]]:
        """The arguments of `responses.insert`."""
        return self.row, self.input_items, self.events

    @property
    def is_one_statement(self) -> bool:
        """Whether one statement writes the response, which needs no transaction around it."""
        new = self.new
        more = new.idempotency_key or new.resolved_input.conversation or self.row.facts.background
        return not (more or new.approvals or any(item.images for item in self.input_items))


def _facts(new: NewRun, created_at: datetime) -> RunFacts:
    echo, request = new.prepared.echo, new.resolved.request
    kind: Kind = "response"
    if isinstance(request, ChoiceRequest):
        kind = "completion" if request.choice is None else "chat"
    return RunFacts(
        tenant=new.caller.tenant,
        id=new.response,
        created_at=created_at,
        model=echo.model,
        background=echo.background,
        kind=kind,
        key_id=new.caller.key_id,
        end_user=new.end_user,
        request_id=new.origin.request_id,
        trace_parent=new.origin.trace_parent,
        user_agent=new.origin.user_agent,
        echo=echo,
        attempt=0 if echo.background else 1,
        prompt_tokens=len(new.prepared.prompt.token_ids),
        wants_output=new.prepared.wants_output,
    )


def lifetime(request: CreateResponse, retention_days: int) -> timedelta | None:
    """The time from a response's creation until it may be purged; None if it is kept for ever."""
    if request.expires_after is not None:
        return timedelta(seconds=request.expires_after.seconds)
    if request.background and request.store is False:
        return MAX_UNSTORED_LIFETIME
    return timedelta(days=retention_days) if retention_days else None


def insert_images(connection: Connection, tenant: str, owner: UUID, new: Sequence[NewItem]) -> None:
    """Insert the pictures of a response's new items. Raises NotFound if one was deleted since it was read."""
    uses = [(item.id, image) for item in new for image in item.images]
    if not uses:
        return
    try:
        images.insert(connection, tenant, owner, uses)
    except ImageRemoved:
        raise removed_image() from None
