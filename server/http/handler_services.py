"""`Services`, which every HTTP handler may use and a process makes once; `ApiCall` and `Handler`."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from msgspec import Raw, Struct
from starlette.requests import Request

from server.admission.admit import Admission
from server.caller import Caller
from server.configuration.settings import Config
from server.delivery.hub import Hub
from server.hosted_tools.tool_loop import ToolLoop
from server.http.asgi.answers import Answer
from server.http.asgi.open_connections import OpenConnections
from server.http.asgi.request_log import RequestObserver
from server.http.authentication import Authenticator
from server.limits.disk_space import Disk
from server.limits.shared_limit import SharedLimit
from server.outbound_http.allowed_addresses import AllowedAddresses
from server.prompting.served_model import LoadedModel
from server.protocol import input_images
from server.protocol.decode import decode
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import CancelReason
from server.recording.recorder import Recorder
from server.recording.response_traces import ResponseTraces
from server.recovery.claimer import Claimer
from server.recovery.heartbeat import Heartbeat
from server.store.cluster.notifications import Notifier
from server.store.database import Database
from server.store.webhooks.endpoints import StoredEndpoint
from server.supervised_thread import StallWatch, SupervisedThread


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    config: Config
    database: Database
    authenticator: Authenticator
    model: LoadedModel
    replica: UUID
    recorder: Recorder
    hub: Hub
    disk: Disk
    notifier: Notifier
    admission: Admission
    claimer: Claimer
    heartbeat: Heartbeat
    tool_loop: ToolLoop
    render_metrics: Callable[[], bytes]
    """All series of this process in Prometheus' text format."""
    events: RequestObserver
    """Counts what is answered."""
    threads: tuple[SupervisedThread, ...]
    """Threads whose failure makes the replica unready."""
    stall_watch: StallWatch
    traces: ResponseTraces
    allowed_receivers: AllowedAddresses
    """To which webhooks may be sent."""
    send_sample: Callable[[StoredEndpoint, list[str], str], int]
    """Sends a sample of an event type to an endpoint with these sealed secrets; returns the HTTP status."""
    limits: list[SharedLimit]
    """The limits of the HTTP edge, which adds them."""
    started_at: int
    """Unix seconds; the model's `created`."""
    connections: OpenConnections = field(default_factory=OpenConnections)
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the server was asked to stop; it is not ready any more, and may still accept requests."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server begins to refuse requests."""

    def create(self, caller: Caller, body: bytes) -> UUID:
        """Creates the response of a body of POST /v1/responses; returns its id. Raises as `admit`."""
        input_images.SOURCE.set(self.model.image_source(caller.tenant))
        (accepted,) = self.admission.admit(caller, [decode(body, CreateResponse, endpoint="responses")])
        return accepted.id

    def request_stop(self, response: UUID, reason: CancelReason) -> None:
        """Ends a response whose row says so and why, on whichever replica it runs or waits."""
        self.tool_loop.cancel(response, reason)
        self.claimer.wake()
        self.notifier.notify_cancel(response)


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request of an authenticated caller, with its whole body."""

    services: Services
    caller: Caller
    request: Request
    body: bytes = b""

    @property
    def database(self) -> Database:
        return self.services.database

    @property
    def id_header(self) -> dict[str, str]:
        """The header with the request's id, which every answer has."""
        return {"x-request-id": self.request.state.request_id}


Handler = Callable[[ApiCall], Answer | Struct | Raw]
"""Answers the requests of a route: a plain function. What it returns as a struct is sent as JSON."""
