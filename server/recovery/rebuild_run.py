"""Rebuilds the run of a claimed response from the store, with the engine request that continues it. The
request is prepared again and the run fed the logged tokens. If that gives another prompt or text, as another
template or parser would, or other weights wrote it, the run can be ended only.

What is stored is read in one transaction. The rest, which takes seconds for many turns, needs none.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from engine.request import EngineRequest
from server.errors import ApiError, Overloaded, TooManyRequests
from server.generation.output_decoding import no_decoding
from server.generation.run import Run, RunFacts
from server.generation.run_log import LoggedTurn, RunLog, texts
from server.prompting.engine_request import Prepared, engine_request_after
from server.prompting.prompt_images import prompt_images, with_prompt_images
from server.prompting.served_model import LoadedModel
from server.prompting.turns import TurnBuilder, first_decoding_spec, first_turn
from server.prompting.write_prompt import ResolvedRequest
from server.protocol.decode import decode_as
from server.protocol.ids import response_id
from server.protocol.responses.events import Event
from server.protocol.responses.items import Item, decode_item
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import Echo
from server.protocol.responses.tools import read_tools
from server.recording.write_updates import read_log
from server.request_input import stored_input
from server.store.content import responses, stored_items
from server.store.content.responses import StoredResponse
from server.store.database import Connection
from server.store.database_errors import DatabaseError

IMAGE_ATTEMPTS = 5
"""To read a picture, while the server is too busy for it."""
log = logging.getLogger("holdfast.rebuild")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A run at the end of its log; without an engine request at its tool calls, or only to be ended."""

    stored: StoredResponse
    run: Run
    engine_request: EngineRequest | None
    turns: TurnBuilder | None = None
    """Set if the run can continue."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A claimed response, its log and its request, as they are stored."""

    stored: StoredResponse
    log: RunLog
    resolved: ResolvedRequest | None
    """The request without its pictures; None if the response can only be ended."""
    pictures: Mapping[bytes, bytes]
    same_weights: bool


def read_stored_run(connection: Connection, stored: StoredResponse, served: LoadedModel) -> StoredRun:
    """Reads a claimed response. Raises DatabaseError, OSError or MemoryError for faults of the environment,
    and any exception if what ending it needs cannot be decoded.
    """
    logged = read_log(connection, stored.tenant, stored.id)
    resolved, pictures, same_weights = None, {}, False
    with _failures_logged(stored):
        if not logged.has_gap:
            resolved = _resolve_again(connection, stored, served)
        if resolved is not None and served.images is not None:
            pictures = stored_input.read_images(connection, stored.tenant, resolved.items)
        is_only_ended = not stored.background or stored.cancel_requested_at is not None
        same_weights = is_only_ended or _take_weights(connection, stored, served, logged)
    return StoredRun(stored, logged, resolved, pictures, same_weights)


def rebuild(run: StoredRun, served: LoadedModel) -> Rebuilt:
    """The run at the end of its log. Raises as `read_stored_run` does, but for the database's errors."""
    stored, logged, first = run.stored, run.log, None
    with _failures_logged(stored):
        if run.resolved is not None:
            first = _prepare_again(stored, served, _with_pictures(run, run.resolved, served))
        if first is not None and run.same_weights:
            rebuilt = _resume(stored, *first, logged)
            if rebuilt is not None:
                return rebuilt
    decoding = replace(no_decoding(), summarizes_reasoning=bool(logged.has_summaries()))
    ended = Run(_facts(stored, first[0] if first else None), decoding)
    ended.restore_output_only(logged)
    return Rebuilt(stored, ended, None)


@contextmanager
def _failures_logged(stored: StoredResponse) -> Iterator[None]:
    """Logs why a response cannot go on; faults of the environment, which pass, are raised."""
    name = response_id(stored.id)
    try:
        yield
    except (DatabaseError, OSError, MemoryError, ImportError):
        raise
    except (Overloaded, TooManyRequests) as error:  # of long prompts; the response is released
        raise BlockingIOError(str(error)) from error
    except ApiError as error:
        log.error("%s cannot be prepared again: %s", name, error, extra=stored.log_fields)
    except Exception:
        log.exception("%s cannot go on from what is stored of it", name, extra=stored.log_fields)


def _take_weights(
    connection: Connection, stored: StoredResponse, served: LoadedModel, logged: RunLog
) -> bool:
    """Whether the weights here may continue the response; one without a token takes them."""
    weights = served.weights.get(stored.model)
    if logged.token_chunks:
        if None in (stored.weights, weights) or stored.weights == weights:
            return True
        log.error(
            "%s was begun by weights %.12s of %s, and %.12s are here, so it is not continued",
            response_id(stored.id),
            stored.weights,
            stored.model,
            weights,
            extra=stored.log_fields,
        )
        return False
    if stored.weights != weights:
        responses.set_weights(connection, stored, weights)
    return True


def _resume(stored: StoredResponse, prepared: Prepared, turns: TurnBuilder, logged: RunLog) -> Rebuilt | None:
    """The run with the engine request that continues it; None if its tokens now decode differently."""
    decoding = first_decoding_spec(turns.served, turns.resolved, prepared)
    if (summarized := logged.has_summaries()) is not None:  # perhaps by another release
        decoding = replace(decoding, summarizes_reasoning=summarized)
    run = Run(_facts(stored, prepared), decoding)
    emitted, engine_request = _replay(run, turns, prepared, logged)
    if texts(emitted) == texts(logged.events):
        return Rebuilt(stored, run, engine_request, turns)
    name = response_id(stored.id)
    log.error("%s reads otherwise than when it was written", name, extra=stored.log_fields)
    return None


def _replay(
    run: Run, turns: TurnBuilder, prepared: Prepared, logged: RunLog
) -> tuple[list[Event], EngineRequest | None]:
    """Brings a fresh run to the end of its log; returns its tokens' events, and the engine request that goes
    on, None at tool calls or after a stop string. Raises ApiError.
    """
    run.emit_start_events(logged)
    at = logged.first_token_at or run.facts.created_at
    emitted: list[Event] = []
    engine_request: EngineRequest | None = prepared.engine_request
    logged_turns = logged.turns(writes_summary=run.writes_summary)
    for number, turn in enumerate(logged_turns):
        if number:
            engine_request = _next_turn(run, turns, at)
        assert run.writes_summary == turn.compacts, "another kind of turn than was logged"
        emitted += run.feed_logged_tokens(turn.token_ids, turn.events, logged.first_token_at)
        is_over = turn.has_compacted or run.awaiting_tools or turn.results
        has_ended = run.has_stopped or _ends(engine_request, turn.token_ids)
        if is_over or (run.has_pending_calls and has_ended):
            _restore_results(run, turn, at)
    run.set_next_seq(logged.next_seq)
    if engine_request is None or run.next_step_is_tools or run.has_stopped:
        return emitted, None
    return emitted, engine_request_after(engine_request, logged_turns[-1].token_ids)


def _ends(engine_request: EngineRequest | None, token_ids: Sequence[int]) -> bool:
    """Whether the model has ended the turn itself."""
    if engine_request is None or not token_ids:
        return False
    return token_ids[-1] in engine_request.stop_ids | engine_request.stop_token_ids


def _next_turn(run: Run, turns: TurnBuilder, at: datetime) -> EngineRequest | None:
    tool_work = run.take_tool_work()
    assert tool_work is not None, "a turn that follows calls without results"
    turn = turns.next_turn(tool_work)
    assert turn is not None, "a turn without a token left for it"
    run.next_turn(turn.decoding_spec, turn.prompt_tokens, at)
    return turn.engine_request


def _restore_results(run: Run, turn: LoggedTurn, at: datetime) -> None:
    """Ends the turn, unless it only had approved calls, and applies the logged results of its calls."""
    if not run.awaiting_tools:
        run.finish("stop", run.counted_usage, at)
    for index, outcome in turn.results.items():
        run.finish_call(index, outcome, at)


def _facts(stored: StoredResponse, prepared: Prepared | None) -> RunFacts:
    return RunFacts(
        **stored.facts(),
        echo=decode_as(stored.request, Echo),
        attempt=stored.attempt,
        prompt_tokens=len(prepared.prompt.token_ids) if prepared else 0,
        wants_output=prepared is None or prepared.wants_output,
    )


def _resolve_again(
    connection: Connection, stored: StoredResponse, served: LoadedModel
) -> ResolvedRequest | None:
    """The request as it was accepted, without its pictures; None if it was not stored, or its model is not
    here.
    """
    if stored.asked is None or stored.model not in served.names:
        return None
    echo = decode_as(stored.request, Echo)  # `asked` has no input, which is stored as items
    request = msgspec.structs.replace(decode_as(stored.asked, CreateResponse), instructions=echo.instructions)
    return ResolvedRequest(
        tenant=stored.tenant,
        request=request,
        tools=read_tools(request.tools),
        items=_items(connection, stored),
        response=stored.id,
        seed=stored.seed,
    )


def _with_pictures(run: StoredRun, resolved: ResolvedRequest, served: LoadedModel) -> ResolvedRequest:
    if served.images is None:
        return resolved
    tenant, items = resolved.tenant, resolved.items
    images = prompt_images(served, tenant, resolved.request, items, run.pictures, IMAGE_ATTEMPTS)
    return replace(resolved, items=with_prompt_images(items, images))


def _prepare_again(
    stored: StoredResponse, served: LoadedModel, resolved: ResolvedRequest
) -> tuple[Prepared, TurnBuilder] | None:
    """None if the prompt differs from the one with which the response was accepted."""
    prepared, turns = first_turn(served, resolved)
    if prepared.prompt_hash != stored.prompt_hash:
        name = response_id(stored.id)
        log.error("%s has another prompt now than when it was accepted", name, extra=stored.log_fields)
        return None
    return prepared, turns


def _items(connection: Connection, stored: StoredResponse) -> Sequence[Item]:
    history: list[Item] = []
    if stored.previous_id is not None:
        history = stored_input.read_history(connection, stored.tenant, stored.previous_id)
    if stored.conversation_id is not None:
        history = stored_input.read_conversation(connection, stored.tenant, stored.conversation_id)
    payloads = stored_items.input_items(connection, stored.tenant, stored.id)
    return [*history, *map(decode_item, payloads)]
