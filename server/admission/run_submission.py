"""`RunSubmission`: accepted responses are given to the recorder and the engine, or end if that fails."""

from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from engine.request import RequestRefused
from server.admission.accept import AcceptedResponse, StoredStart
from server.admission.key_claims import KeyClaims
from server.admission.prepare_runs import NewRun
from server.crashpoints import ARMED, crashpoint
from server.delivery.hub import Abandonment, Channel, Hub
from server.generation.run import Run
from server.hosted_tools.tool_loop import ToolLoop
from server.limits.rate_limits import RateLimits
from server.prompting.engine_request import refusal
from server.prompting.loaded_model import LoadedModel
from server.protocol.responses.events import Event, frames
from server.recording.recorder import Recorder

NOT_TAKEN = "The server could not take this response; try again."


class RunSubmission:
    """Any thread."""

    def __init__(
        self,
        served: LoadedModel,
        recorder: Recorder,
        hub: Hub,
        *,
        tool_loop: ToolLoop,
        rates: RateLimits,
        claims: KeyClaims,
        unread: Abandonment,
        grace_seconds: float,
    ) -> None:
        self._served = served
        self._recorder = recorder
        self._hub = hub
        self._tool_loop = tool_loop
        self._rates = rates
        self._claims = claims
        self._unread = unread
        self._grace_seconds = grace_seconds

    def submit_all(self, prepared: Sequence[NewRun], starts: Sequence[StoredStart]) -> list[AcceptedResponse]:
        """Begin the responses of one request, for which there is capacity.

        If one cannot begin, all end, and what was raised for the first such one is raised: ApiError where the
        engine refuses it, as one that has just died does.
        """
        begun: list[AcceptedResponse] = []
        failures: list[Exception] = []
        for new, (run, first_events) in zip(prepared, starts, strict=True):
            try:
                begun.append(self._submit(new, run, first_events))
            except Exception as failure:  # noqa: BLE001 - it is raised when the others have begun, and can end
                failures.append(failure)
        if failures:
            for new in prepared:
                self._tool_loop.cancel(new.response)
            raise failures[0]
        return begun

    def _submit(self, new: NewRun, run: Run, first_events: Sequence[Event]) -> AcceptedResponse:
        waits_for_calls = run.awaiting_tools  # read before the recorder's thread owns the run
        try:
            attempt = run.facts.attempt if run.stored else None
            channel = self._open(new, frames(new.response, first_events, attempt))
            self._recorder.start_run(run, reserved=True)
        except Exception:
            self._leave(new)
            raise
        if ARMED:
            crashpoint("accept.begun")
        if not waits_for_calls:
            try:
                self._served.engine.submit(new.checked)
            except Exception as error:
                self._recorder.fail_run(new.response, NOT_TAKEN)
                if isinstance(error, RequestRefused):
                    raise refusal(error, new.resolved.request) from error
                raise
        if ARMED:
            crashpoint("accept.submitted")
        found = new.resolved_input
        return AcceptedResponse(new.response, channel, found.items, found.read_bytes)

    def _open(self, new: NewRun, first_frames: Sequence[bytes]) -> Channel:
        response = new.response
        if (new.resolved.tools or new.prepared.compaction) and new.turns.may_have_next_turn:
            self._tool_loop.register(new.turns)
        on_abandoned: Callable[[UUID], None] = self._unread.add
        if not new.stored:
            on_abandoned = partial(self._tool_loop.cancel, reason="client_disconnect")
        return self._hub.open(
            response,
            stored=new.stored,
            grace=self._grace_seconds,
            on_abandoned=partial(on_abandoned, response),
            first_frames=first_frames,
        )

    def _leave(self, new: NewRun) -> None:
        """The recorder does not have the run. A stored response is left to the heartbeat, which releases what
        this replica owns and `capacity` does not count.
        """
        response = new.response
        self._tool_loop.unregister(response)
        if new.stored:
            self._hub.release(new.caller.tenant, response)
        else:
            self._hub.discard(response)
            self._claims.give_up(new)
        self._rates.drop([response])
        self._recorder.capacity.discard(response)
