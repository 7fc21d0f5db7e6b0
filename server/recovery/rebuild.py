"""Rebuilds the run of a claimed response from the store, with the engine request that continues it.

The request is prepared again as when it was accepted, and the run is fed the logged tokens. Both must give
the same prompt and text as then. If they do not, because a template or a parser has changed, the run can be
ended but not continued.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from engine.request import EngineRequest
from server.admission import resolve_input
from server.compaction.inline import prepare_with_compaction
from server.errors import ApiError
from server.generation.item_starts import has_summaries
from server.generation.output_decoding import no_decoding
from server.generation.run import Run, RunFacts, RunLog
from server.prompting.engine_request import Prepared, ResolvedRequest, prepare
from server.prompting.loaded_model import LoadedModel
from server.prompting.turns import TurnBuilder, first_decoding_spec
from server.protocol.errors import DecodeFailure
from server.protocol.responses.events import Event
from server.protocol.responses.items import Item, decode_item
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import Echo
from server.protocol.responses.tools import read_tools
from server.protocol.typed import decode_as
from server.recovery.replay import replay, texts
from server.store.content import responses
from server.store.content.responses import StoredResponse
from server.store.database import Connection, DatabaseError
from server.store.log import events
from server.store.log.events import LogProgress

log = logging.getLogger("holdfast.rebuild")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A run at the end of its log. Without an engine request it is at its tool calls, or can only be
    ended.
    """

    stored: StoredResponse
    run: Run
    engine_request: EngineRequest | None
    turns: TurnBuilder | None = None
    """Set if the run can continue."""


def rebuild(connection: Connection, stored: StoredResponse, served: LoadedModel) -> Rebuilt:
    """Reads a claimed response's log, history and request.

    Raises DatabaseError, and any exception if the stored data cannot be decoded even as far as ending the
    run needs.
    """
    progress = events.read_progress(connection, stored.tenant, stored.id)
    logged = events.read(connection, stored.tenant, stored.id, 0)
    prepared = None
    try:
        resolved = _resolve_again(connection, stored, served)
        prepared = _prepare_again(stored, served, resolved) if resolved is not None else None
        if resolved is not None and prepared is not None:
            rebuilt = _resume(stored, served, resolved, prepared, progress, logged)
            if rebuilt is not None:
                return rebuilt
    except DatabaseError:
        raise
    except Exception:
        log.exception("response %s cannot go on from what is stored of it", stored.id)
    run = Run(
        _facts(stored, prepared), replace(no_decoding(), summarizes_reasoning=bool(has_summaries(logged)))
    )
    run.restore_output_only(RunLog(progress.token_ids, progress.next_seq, logged, progress.first_token_at))
    return Rebuilt(stored, run, None)


def _resume(
    stored: StoredResponse,
    served: LoadedModel,
    resolved: ResolvedRequest,
    prepared: Prepared,
    progress: LogProgress,
    logged: Sequence[Event],
) -> Rebuilt | None:
    """The run with the engine request that continues it; None if its tokens now decode differently."""
    decoding = first_decoding_spec(served, resolved, prepared)
    if (summarized := has_summaries(logged)) is not None:  # perhaps by an earlier release
        decoding = replace(decoding, summarizes_reasoning=summarized)
    run = Run(_facts(stored, prepared), decoding)
    turns = TurnBuilder(served=served, resolved=resolved, model_writes_summary=run.writes_summary)
    emitted, engine_request = replay(run, turns, prepared, progress, logged)
    if texts(emitted) == texts(logged):
        return Rebuilt(stored, run, engine_request, turns)
    log.error("response %s reads otherwise than when it was written", stored.id)
    return None


def _facts(stored: StoredResponse, prepared: Prepared | None) -> RunFacts:
    return RunFacts(
        tenant=stored.tenant,
        id=stored.id,
        key_id=stored.key_id,
        echo=decode_as(stored.request, Echo),
        created_at=stored.created_at,
        attempt=stored.attempt,
        prompt_tokens=len(prepared.prompt.token_ids) if prepared else 0,
        wants_output=prepared is None or prepared.wants_output,
    )


def _resolve_again(
    connection: Connection, stored: StoredResponse, served: LoadedModel
) -> ResolvedRequest | None:
    """The request as it was accepted; None if it was not stored, or its model or tools are not here."""
    if stored.asked is None or stored.model not in served.names:
        return None
    request = _request(stored, stored.asked)
    try:
        return ResolvedRequest(
            tenant=stored.tenant,
            request=request,
            tools=read_tools(request.tools),
            items=_items(connection, stored),
            response=stored.id,
            seed=stored.seed,
        )
    except (ApiError, DecodeFailure) as error:
        log.error("response %s cannot be prepared again: %s", stored.id, error)
        return None


def _prepare_again(stored: StoredResponse, served: LoadedModel, resolved: ResolvedRequest) -> Prepared | None:
    """None if the prompt differs from the one with which the response was accepted."""
    settings = resolved.request.context_management
    try:
        if settings:
            prepared = prepare_with_compaction(served, resolved, settings)
        else:
            prepared = prepare(served, resolved)
    except (ApiError, DecodeFailure) as error:
        log.error("response %s cannot be prepared again: %s", stored.id, error)
        return None
    if prepared.prompt_hash != stored.prompt_hash:
        log.error("response %s has another prompt now than when it was accepted", stored.id)
        return None
    return prepared


def _request(stored: StoredResponse, request_json: str) -> CreateResponse:
    """The stored request, without its input, which is stored as items."""
    echo = decode_as(stored.request, Echo)
    request = decode_as(request_json, CreateResponse)
    return msgspec.structs.replace(request, instructions=echo.instructions)


def _items(connection: Connection, stored: StoredResponse) -> Sequence[Item]:
    history: list[Item] = []
    if stored.previous_id is not None:
        history = resolve_input.read_history(connection, stored.tenant, stored.previous_id)
    if stored.conversation_id is not None:
        history = resolve_input.read_conversation(connection, stored.tenant, stored.conversation_id)
    payloads = responses.input_items(connection, stored.tenant, stored.id)
    return [*history, *map(decode_item, payloads)]
