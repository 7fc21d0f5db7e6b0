"""`RunPreparation`: a create's input resolved, its prompts and engine requests made and checked.

The choices of one completion (`n` > 1) share the history, a prompt and the limit of log probabilities.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import msgspec

from engine.request import CheckedRequest, EngineRequest, RequestRefused
from server.admission.request_validation import validate_request
from server.caller import Caller
from server.generation.hosted_tools_of_response import McpCredentials, approved_calls
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.mcp_discovery import discover_tools
from server.limits.tenant_limits import HistoryReads, QueueLimits
from server.logs.context import Origin
from server.prompting.engine_request import (
    MAX_LOGPROBS,
    Prepared,
    beams,
    logprobs_limit,
    prompt_logprobs,
    refusal,
)
from server.prompting.prompt_images import with_prompt_images
from server.prompting.prompt_limits import check_callable, check_functions
from server.prompting.refused_grammars import refused_tool
from server.prompting.served_model import LoadedModel
from server.prompting.turns import TurnBuilder, count_prompt, first_turn
from server.prompting.write_prompt import ResolvedRequest
from server.protocol.completions.requests import ChoiceRequest
from server.protocol.error_object import invalid_value
from server.protocol.ids import choice_id, new_uuid
from server.protocol.responses.input import InputItem
from server.protocol.responses.items import Item, encode_item
from server.protocol.responses.request import CreateResponse, end_user
from server.protocol.responses.tools import Tool
from server.request_input.item_settings import naming_tools_of_items, with_item_settings
from server.request_input.resolve_input import ResolvedInput, reading_input, with_own_id
from server.request_input.template_input import read_templated_input
from server.store.database import Connection, Database


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    key: str
    digest: bytes
    """SHA-256 of the request's path and body: the same key with another body is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCreate:
    """A valid request with its parsed input: one response, or the choices of a completion."""

    caller: Caller
    choices: Sequence[CreateResponse]
    input_items: Sequence[InputItem]
    prior_items: Sequence[Item] | None = None
    """The history up to the end of the previous response, where that is not stored."""
    idempotency_key: IdempotencyKey | None = None
    origin: Origin = Origin()
    generate: bool = True
    """If False, the responses complete without output when their prompt is prefilled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A response that is prepared and not accepted yet."""

    caller: Caller
    resolved: ResolvedRequest
    resolved_input: ResolvedInput
    prepared: Prepared
    stored: bool
    """Whether it gets a row."""
    checked: CheckedRequest
    turns: TurnBuilder
    idempotency_key: IdempotencyKey | None
    origin: Origin
    end_user: str | None

    @property
    def response(self) -> UUID:
        return self.resolved.response

    @property
    def waits_for_calls(self) -> bool:
        """Whether calls that the input approves are made before the engine gets a request."""
        return bool(self.approvals)

    @property
    def approvals(self) -> Mapping[str, str]:
        """The requests whose calls the input approves: the ids that they were sent with by those of here."""
        if not (self.turns.has_hosted_tools and self.prepared.wants_output):
            return {}
        sent = self.resolved_input.sent_ids
        return {item.id: sent.get(item.id, item.id) for item in approved_calls(self.resolved.items)}

    @property
    def announces(self) -> bool:
        """Whether the run may have events before its first token, such as lists of tools."""
        request = self.resolved.request
        return (
            self.turns.has_hosted_tools
            or self.prepared.compaction is not None
            or (isinstance(request, ChoiceRequest) and request.streams_token_ids)
        )

    @property
    def retained_input_bytes(self) -> int:
        """Bytes of the input, as JSON, that is kept until the response's end for a further turn."""
        if not self.turns.may_have_next_turn:
            return 0
        return sum(len(encode_item(item)) for item in self.resolved_input.items)

    @property
    def output_tokens(self) -> int:
        """The most tokens that it can generate: a summary of its input is among them."""
        if not self.prepared.wants_output:
            return 0
        after = self.prepared.next_engine_request
        return self.prepared.engine_request.max_tokens + (0 if after is None else after.max_tokens)


@dataclass(frozen=True, slots=True)
class RunPreparation:
    """Prepares runs without storing anything. Any thread."""

    served: LoadedModel
    database: Database
    servers: McpServers
    history: HistoryReads
    queue: QueueLimits

    def prepare_runs(self, create: ParsedCreate) -> list[NewRun]:
        """The runs of all choices, with the first one's input. Raises ApiError or NotReady."""
        caller, first_request, first_id = create.caller, create.choices[0], new_uuid()

        def check_queue(connection: Connection) -> None:
            self.queue.check(connection, caller)

        with reading_input(
            self.database,
            self.history,
            self.served,
            caller.tenant,
            first_request,
            create.input_items,
            first_id,
            create.prior_items,
            check_queue if first_request.background else None,
        ) as resolved_input:
            runs = [self._prepare(create, first_request, first_id, resolved_input)]
        later = replace(create, idempotency_key=None)
        for index, request in enumerate(create.choices[1:], 1):
            response = choice_id(first_id, index)
            own_input = _input_of_choice(response, resolved_input)
            if _shares_prompt(request, create.choices[index - 1]):
                runs.append(self._with_prompt_of(runs[-1], request, response, own_input))
            else:
                runs.append(self._prepare(later, request, response, own_input))
        _check_prompt_logprobs([run.prepared.engine_request for run in runs])
        return runs

    def _prepare(
        self, create: ParsedCreate, request: CreateResponse, response: UUID, resolved_input: ResolvedInput
    ) -> NewRun:
        resolved, credentials = self._resolve(create.caller, request, response, resolved_input)
        request, tools = resolved.request, resolved.tools
        prepared, turns = first_turn(self.served, resolved, credentials, generate=create.generate)
        engine_request = prepared.engine_request
        if engine_request.logprobs is not None:
            engine_request = _limit_logprobs(engine_request, request, len(create.choices))
            prepared = replace(prepared, engine_request=engine_request)
        checked = self._check(engine_request, request, tools)
        if prepared.next_engine_request is not None:
            self._check(prepared.next_engine_request, request, tools)
        return NewRun(
            caller=create.caller,
            resolved=resolved,
            resolved_input=resolved_input,
            prepared=prepared,
            stored=prepared.echo.store or prepared.echo.background,
            checked=checked,
            turns=turns,
            idempotency_key=create.idempotency_key,
            origin=create.origin,
            end_user=end_user(request.user, request.safety_identifier),
        )

    def _resolve(
        self, caller: Caller, request: CreateResponse, response: UUID, resolved_input: ResolvedInput
    ) -> tuple[ResolvedRequest, Mapping[str, McpCredentials]]:
        """The request with the settings and tools of its items and servers, and the servers' credentials."""
        items = _prompt_items(resolved_input)
        sent = request
        if not resolved_input.only_messages:
            request = with_item_settings(request, items, self.served.seal, caller.tenant)
        tools: Sequence[Tool] = ()
        credentials: Mapping[str, McpCredentials] = {}
        if request.tools or resolved_input.approves:
            with naming_tools_of_items(sent, request.tools, resolved_input.new):
                request, tools, credentials = discover_tools(self.servers, caller, request, items)
                check_functions(tools, request.tools)
                check_callable(request.tools or ())
        resolved = ResolvedRequest(
            tenant=caller.tenant,
            request=request,
            tools=tools,
            items=items,
            response=response,
            seed=_seed_of(request),
        )
        return resolved, credentials

    def count_tokens(self, caller: Caller, request: CreateResponse) -> int:
        """The tokens of a request's prompt, without running it. Raises what creating the response raises."""
        validate_request(caller, request, self.served)
        request, input_items = read_templated_input(self.database, caller.tenant, request)
        response = new_uuid()
        with reading_input(
            self.database, self.history, self.served, caller.tenant, request, input_items, response
        ) as resolved_input:
            resolved, _ = self._resolve(caller, request, response, resolved_input)
            return count_prompt(self.served, resolved)

    def _with_prompt_of(
        self, other: NewRun, request: CreateResponse, response: UUID, resolved_input: ResolvedInput
    ) -> NewRun:
        """The run of a choice that shares the other's prompt, which is not written again."""
        resolved = replace(
            other.resolved,
            request=msgspec.structs.replace(request, tools=other.resolved.request.tools),  # as discovered
            items=_prompt_items(resolved_input),
            response=response,
            seed=_seed_of(request),
        )
        engine_request = replace(
            other.prepared.engine_request,
            request_id=response.hex,
            sampling=replace(other.prepared.engine_request.sampling, seed=resolved.seed),
            prompt_logprobs=prompt_logprobs(request),
            beams=beams(request),
        )
        return replace(
            other,
            resolved=resolved,
            resolved_input=resolved_input,
            prepared=replace(other.prepared, engine_request=engine_request),
            checked=self._check(engine_request, request, resolved.tools),
            turns=replace(other.turns, resolved=resolved),
            idempotency_key=None,
        )

    def with_output_limit(self, run: NewRun, most: int) -> NewRun:
        """The run with at most so many output tokens in all of its turns.

        The response shows the request's own limit; the stored request has this one, for another replica.
        """
        own = run.resolved.request.max_output_tokens
        request = msgspec.structs.replace(
            run.resolved.request, max_output_tokens=most if own is None else min(own, most)
        )
        resolved = replace(run.resolved, request=request)
        engine_request = run.prepared.engine_request
        limit = min(engine_request.max_tokens, most)
        engine_request = replace(
            engine_request, max_tokens=limit, min_tokens=min(engine_request.min_tokens, limit)
        )
        return replace(
            run,
            resolved=resolved,
            prepared=replace(run.prepared, engine_request=engine_request),
            checked=self._check(engine_request, request, resolved.tools),
            turns=replace(run.turns, resolved=resolved),
        )

    def _check(
        self, engine_request: EngineRequest, request: CreateResponse, tools: Sequence[Tool]
    ) -> CheckedRequest:
        """Raises ApiError for a request beyond the engine's limits, regardless of its current load."""
        try:
            return self.served.engine.check(engine_request)
        except RequestRefused as refused:
            error = refusal(refused, request)
            if refused.reason == "bad_grammar" and error.param == "tools":
                check = self.served.engine.check
                error = refused_tool(check, engine_request, tools, request.tools) or error
            raise error from refused


def _prompt_items(resolved_input: ResolvedInput) -> Sequence[Item]:
    """The items with the pictures that the model reads. Raises InvalidRequest for too many."""
    items, images = resolved_input.items, resolved_input.images
    return with_prompt_images(items, images) if images else items


def _seed_of(request: CreateResponse) -> int:
    """The request's seed modulo 2**63, or a random one."""
    return request.seed % 2**63 if request.seed is not None else secrets.randbits(63)


def _shares_prompt(request: CreateResponse, other: CreateResponse) -> bool:
    """Whether two requests are choices of one completion with the same prompt."""
    if not isinstance(request, ChoiceRequest) or not isinstance(other, ChoiceRequest):
        return False
    return request == msgspec.structs.replace(
        other,
        choice=request.choice,
        beam_rank=request.beam_rank,
        seed=request.seed,
        prompt_logprobs=request.prompt_logprobs,
        enable_response_messages=request.enable_response_messages,
    )


def _input_of_choice(response: UUID, first: ResolvedInput) -> ResolvedInput:
    """The first choice's input, its new items with ids of this choice.

    A completion refers to no stored item, so no id has to be kept.
    """
    return replace(
        first, new=[with_own_id(item, response, "i", index) for index, item in enumerate(first.new)]
    )


def _limit_logprobs(engine_request: EngineRequest, request: CreateResponse, choices: int) -> EngineRequest:
    """The engine request of one of `choices` choices, which share MAX_LOGPROBS, with max_tokens within it.

    It has log probabilities. Raises InvalidRequest if the request's own max_output_tokens is beyond it.
    """
    assert engine_request.logprobs is not None
    most = max(1, logprobs_limit(engine_request.logprobs, engine_request.logprob_token_ids) // choices)
    if engine_request.max_tokens <= most:
        return engine_request
    if request.max_output_tokens is not None and request.max_output_tokens > most:
        raise invalid_value(
            f"{choices} choices of {request.max_output_tokens} tokens with "
            f"{max(1, engine_request.logprobs, len(engine_request.logprob_token_ids))} log "
            f"probabilities each are more than {MAX_LOGPROBS}: ask for fewer of them, or for at most {most} "
            "tokens.",
            "top_logprobs",
        )
    return replace(engine_request, max_tokens=most, min_tokens=min(engine_request.min_tokens, most))


def _check_prompt_logprobs(engine_requests: Sequence[EngineRequest]) -> None:
    """Raises InvalidRequest if the prompts of these choices have too many log probabilities."""
    count = sum(
        len(engine_request.prompt) * max(1, engine_request.prompt_logprobs or 0)
        for engine_request in engine_requests
        if engine_request.prompt_logprobs is not None
    )
    if count > MAX_LOGPROBS:
        raise invalid_value(
            f"prompt_logprobs would be {count} log probabilities here; at most {MAX_LOGPROBS} are told.",
            "prompt_logprobs",
        )
