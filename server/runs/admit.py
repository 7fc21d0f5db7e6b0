"""Accepting a response: checked, written down in one transaction, handed to the engine.

Runs in a handler's thread and waits for no token. Everything that can be wrong with a request is found before
the row exists; once it does, the response reaches a terminal status.
"""

import hashlib
import secrets
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from engine.messages import Capabilities, Engine, Job, JobRefused, Sampling
from server.auth import Caller
from server.config import Config
from server.dialects.base import Dialect, Prompt, PromptError
from server.errors import ApiError, InvalidRequest, Overloaded, StorageFull, TooManyRequests, UnknownModel
from server.runs import context
from server.runs.lifetime import lifetime
from server.runs.recorder import Recorder, stored_item
from server.runs.run import Run, RunFacts
from server.runs.unsupported import refuse_unsupported
from server.store import events, responses
from server.store.database import Database, clock
from server.store.disk import Disk
from server.store.responses import NewResponse
from server.stream.frames import frame
from server.stream.hub import Channel, Hub, Published
from server.wire.events import Event, render
from server.wire.ids import new_uuid
from server.wire.items import Item
from server.wire.request import CreateResponse
from server.wire.response import Echo, FormatEcho, ReasoningEcho, TextEcho

SMALLEST_TOP_P = 1e-6
"""What top_p 0 means: the likeliest token alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The model that this process serves."""

    name: str
    engine: Engine
    dialect: Dialect

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may ask for: the model and its adapters."""
        return (self.name, *self.engine.capabilities.adapters)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A response that exists from now on."""

    id: UUID
    channel: Channel


class Admission:
    """The way in. `close` stops it for good."""

    def __init__(
        self,
        served: Served,
        database: Database,
        replica: UUID,
        recorder: Recorder,
        hub: Hub,
        disk: Disk,
        config: Config,
    ) -> None:
        self._served = served
        self._database = database
        self._replica = replica
        self._recorder = recorder
        self._hub = hub
        self._disk = disk
        self._config = config
        self._closed = threading.Event()

    @property
    def open(self) -> bool:
        return not self._closed.is_set()

    def close(self) -> None:
        """Refuses whatever comes from now on."""
        self._closed.set()

    def admit(self, caller: Caller, request: CreateResponse) -> Admitted:
        """Begins a response. Raises ApiError or DecodeFailure, and then nothing has happened."""
        if self._closed.is_set():
            raise Overloaded("The server is shutting down.")
        if self._disk.shortage() is not None:
            raise StorageFull
        refuse_unsupported(request)
        if request.model not in self._served.names:
            raise UnknownModel(request.model, self._served.names)
        response = new_uuid()
        new = context.new_items(request, response)
        with self._database.begin() as connection:
            previous, history = context.previous(connection, caller.tenant, request)
        prompt = self._write_prompt(request, context.conversation(history, new))
        echo = make_echo(request, self._served.engine.capabilities)
        job = self._make_job(caller, request, response, prompt, echo)
        created_at = self._database_time() if not echo.store else None
        run, begun = self._accept(caller, request, job, echo, prompt, previous, new, created_at)
        return self._hand_over(run, job, begun)

    def _write_prompt(self, request: CreateResponse, items: Sequence[Item]) -> Prompt:
        effort = request.reasoning.effort if request.reasoning else None
        try:
            return self._served.dialect.write(request.instructions, items, effort)
        except PromptError as error:
            raise InvalidRequest(str(error), param="input") from error

    def _make_job(
        self, caller: Caller, request: CreateResponse, response: UUID, prompt: Prompt, echo: Echo
    ) -> Job:
        model = self._served.engine.capabilities
        room = model.context_length - len(prompt.token_ids)
        if room < 1:
            raise too_long(len(prompt.token_ids), model.context_length)
        job = Job(
            job_id=response.hex,
            prompt=prompt.token_ids,
            max_tokens=min(echo.max_output_tokens or room, room),
            sampling=Sampling(
                seed=request.seed if request.seed is not None else secrets.randbits(63),
                temperature=echo.temperature,
                top_p=max(echo.top_p, SMALLEST_TOP_P),
                top_k=model.top_k,
                min_p=model.min_p,
                repetition_penalty=model.repetition_penalty,
                presence_penalty=echo.presence_penalty,
                frequency_penalty=echo.frequency_penalty,
            ),
            stop_ids=prompt.stop_ids,
            cache_salt=caller.tenant,
            share=caller.tenant,
            adapter=request.model if request.model != self._served.name else "",
        )
        try:
            self._served.engine.check(job)
        except JobRefused as refused:
            raise refusal(refused) from refused
        return job

    def _accept(
        self,
        caller: Caller,
        request: CreateResponse,
        job: Job,
        echo: Echo,
        prompt: Prompt,
        previous: UUID | None,
        new: Sequence[Item],
        created_at: datetime | None,
    ) -> tuple[Run, list[Event]]:
        """Writes the response, its input and its first events, unless it is not to be stored."""
        response = UUID(hex=job.job_id)

        def make_run(created: datetime) -> Run:
            facts = RunFacts(
                tenant=caller.tenant,
                id=response,
                key_id=caller.key_id,
                echo=echo,
                created_at=created,
                attempt=1,
                prompt_tokens=len(prompt.token_ids),
            )
            return Run(facts, self._served.dialect.parser(opens_reasoning=prompt.opens_reasoning))

        if created_at is not None:
            run = make_run(created_at)
            return run, run.begin()
        row = NewResponse(
            tenant=caller.tenant,
            id=response,
            previous_id=previous,
            stream=bool(request.stream),
            background=False,
            model=echo.model,
            replica_id=self._replica,
            seed=job.sampling.seed,
            prompt_hash=hash_prompt(job.prompt),
            request=msgspec.json.encode(echo).decode(),
            metadata=msgspec.json.encode(echo.metadata).decode(),
            lifetime=lifetime(request, self._config.retention_days),
        )
        with self._database.begin() as connection:
            # Its history was read a moment ago; from here on it cannot be deleted under its next turn.
            if previous and not responses.hold(connection, caller.tenant, previous):
                raise context.unknown_previous(request.previous_response_id or "")
            run = make_run(responses.insert_accepted(connection, row))
            begun = run.begin()
            responses.insert_items(
                connection, caller.tenant, response, responses.INPUT, [stored_item(item) for item in new]
            )
            events.append(connection, events.pack(caller.tenant, response, 1, begun, []))
        return run, begun

    def _hand_over(self, run: Run, job: Job, begun: Sequence[Event]) -> Admitted:
        engine = self._served.engine
        response = run.facts.id
        channel = self._hub.open(
            response,
            stored=run.stored,
            grace=self._config.grace_seconds,
            on_abandoned=lambda: engine.cancel(job.job_id),
        )
        frames = tuple(frame(event, render(response, event)) for event in begun)
        self._hub.publish([Published(response, 0, frames, None)])
        self._recorder.begin(run)
        try:
            engine.submit(job)
        except JobRefused:
            self._recorder.fail(response, "The server is overloaded; try again later.")
        return Admitted(response, channel)

    def _database_time(self) -> datetime:
        with self._database.begin() as connection:
            return clock(connection)


def make_echo(request: CreateResponse, model: Capabilities) -> Echo:
    """What the response repeats of the request, the model's own defaults filled in. Pure."""
    text = request.text
    return Echo(
        background=False,
        frequency_penalty=request.frequency_penalty or 0.0,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        model=request.model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        presence_penalty=request.presence_penalty or 0.0,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        reasoning=ReasoningEcho(request.reasoning.effort, request.reasoning.summary)
        if request.reasoning
        else ReasoningEcho(),
        safety_identifier=request.safety_identifier,
        service_tier="default",
        store=request.store is not False,
        temperature=request.temperature if request.temperature is not None else model.temperature,
        text=TextEcho(FormatEcho(), text.verbosity if text and text.verbosity else msgspec.UNSET),
        tool_choice=request.tool_choice or "auto",
        tools=[],
        top_logprobs=0,
        top_p=request.top_p if request.top_p is not None else model.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
    )


def hash_prompt(token_ids: Sequence[int]) -> bytes:
    """Tells a changed template or tokenizer from the one that a response began with."""
    return hashlib.sha256(array("i", token_ids).tobytes()).digest()


def refusal(refused: JobRefused) -> ApiError:
    """The engine's refusal as the caller is told it."""
    match refused.reason:
        case "too_long":
            return InvalidRequest(str(refused), param="input", code="context_length_exceeded")
        case "overloaded":
            return Overloaded("The server has more requests than it can take; try again later.")
        case "share_full":
            return TooManyRequests("You have as many requests here as one may have; try again later.")
        case "closed":
            return Overloaded("The engine does not take requests at the moment.")
        case _:
            return InvalidRequest(str(refused))


def too_long(tokens: int, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"The input has {tokens} tokens and leaves no room for an answer in this model's {limit}.",
        param="input",
        code="context_length_exceeded",
    )
