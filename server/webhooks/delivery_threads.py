"""`WebhookSender`: the thread that claims due deliveries and writes their results, and the threads that send.

The first alone uses the database, for results and claims in one transaction. A claim ends by itself after the
longest attempt, so what a killed process had claimed is attempted by another.
"""

import logging
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from uuid import UUID

from server.crashpoints import crashpoint
from server.protocol.ids import response_id, webhook_endpoint_id
from server.store.administration import audit_trail
from server.store.database import Connection, Database
from server.store.database_errors import DatabaseError
from server.store.webhooks import endpoints, outbox
from server.store.webhooks.outbox import AttemptResult, Claimed
from server.supervised_thread import Retry, SupervisedThread, Worker
from server.webhooks.delivery_attempt import WebhookClient
from server.webhooks.endpoint_slots import EndpointSlots
from server.webhooks.retries import ReceiverAnswer, Verdict, judge

log = logging.getLogger("holdfast.webhooks")

SENDERS = 16
"""Attempts under way in one process."""
LEASE_MARGIN_SECONDS = 5.0
"""A claim ends so long after the longest attempt."""
POLL_SECONDS, IDLE_POLL_SECONDS = 1.0, 5.0
"""The time between two looks for due deliveries, and for the first endpoint while there is none."""
HOUSEKEEPING_SECONDS = 10.0
HOUSEKEEPING_TURN_SECONDS = 1.0
"""The longest turn of housekeeping; the rest waits until due deliveries are sent."""
STOP_SECONDS = 5.0
"""The time for the attempts under way when the process ends."""
_GONE = "The receiver answered 410 Gone."


@dataclass(slots=True)
class SendingStats:
    """Counts of this process. Written by one thread, read by any."""

    delivered: int = 0
    failed: int = 0
    """Attempts."""
    given_up: int = 0
    """Deliveries."""
    under_way: int = 0


class WebhookSender(Worker):
    """Any number of processes may run one at the same time."""

    def __init__(self, database: Database, replica: UUID, client: WebhookClient, first_pause: float) -> None:
        """`first_pause` is in seconds, before the first repetition."""
        self.stats = SendingStats()
        self.thread = SupervisedThread("webhooks", self._turn, retry=Retry(max_failures=None))
        self._database = database
        self._replica = replica
        self._client = client
        self._first_pause = first_pause
        self._poll = min(POLL_SECONDS, first_pause)
        self._slots = EndpointSlots(SENDERS, first_pause)
        self._claimed: SimpleQueue[Claimed] = SimpleQueue()
        self._answered: SimpleQueue[tuple[Claimed, ReceiverAnswer]] = SimpleQueue()
        self._unsettled: list[AttemptResult] = []
        self._gone: dict[UUID, Claimed] = {}
        """Endpoints that answered 410, with what they were sent."""
        self._senders: list[SupervisedThread] = []
        self._are_endpoints = False
        self._housekeeping_at = -inf

    def stop(self) -> None:
        """Ends after the attempts under way, or after STOP_SECONDS; the rest is attempted again elsewhere."""
        self.thread.stop()
        for sender in self._senders:
            sender.request_stop()
        until = monotonic() + STOP_SECONDS
        while self.stats.under_way and monotonic() < until:
            try:
                self._note(*self._answered.get(timeout=max(0.0, until - monotonic())))
            except Empty:
                break
        try:
            with self._database.begin() as connection:
                self._settle(connection)
        except DatabaseError as error:
            log.warning("results of webhooks were not stored: %s", type(error).__name__)

    def response_ended(self) -> None:
        """A commit ended responses, which may have deliveries. Any thread; never waits."""
        if self._are_endpoints:
            self.thread.wake()

    def _turn(self) -> None:
        if self.thread.wait(self._poll if self._are_endpoints else IDLE_POLL_SECONDS):
            return
        try:
            self.send_due()
            if monotonic() - self._housekeeping_at > HOUSEKEEPING_SECONDS:  # also after the last endpoint
                self._housekeeping_at = monotonic()
                if not self.keep_house():
                    self._housekeeping_at = -inf
        except DatabaseError as error:
            log.warning("webhooks wait for the database: %s", type(error).__name__)
            self.thread.wait(POLL_SECONDS)

    def send_due(self) -> None:
        """Writes results of ended attempts and begins attempts of due deliveries. Raises DatabaseError."""
        while not self._answered.empty():
            self._note(*self._answered.get())
        with self._database.begin() as connection:
            self._settle(connection)
            self._are_endpoints = endpoints.any_enabled(connection)
            claimed = self._claim(connection) if self._are_endpoints else []
            if claimed:
                crashpoint("webhook.claim_written")
        if self._unsettled:
            crashpoint("webhook.result_committed")
        self._unsettled, self._gone = [], {}
        if claimed:
            crashpoint("webhook.claimed")
        for delivery in claimed:
            self._slots.begin(delivery.endpoint_id)
            self._claimed.put(delivery)
        self.stats.under_way = SENDERS - self._slots.free()
        while len(self._senders) < self.stats.under_way:
            self._start_sender()

    def _claim(self, connection: Connection) -> list[Claimed]:
        free = self._slots.free()
        room = self._slots.room(outbox.due_endpoints(connection), monotonic()) if free else {}
        if not room:
            return []
        lease = timedelta(seconds=self._client.seconds + LEASE_MARGIN_SECONDS)
        return outbox.claim(connection, limit=free, lease=lease, room=room)

    def _settle(self, connection: Connection) -> None:
        given_up = outbox.settle(connection, self._unsettled)
        for gone in self._gone.values():
            if endpoints.disable_gone(connection, gone.endpoint_id, gone.url, _GONE):
                actor, target = f"server:{self._replica}", webhook_endpoint_id(gone.endpoint_id)
                audit_trail.record(connection, actor, "webhook.disable", gone.tenant, target)
                log.warning("webhook endpoint %s is disabled: %s", target, _GONE)
        if self._unsettled:
            crashpoint("webhook.result_written")
        if given_up:
            self.stats.given_up += given_up
            log.warning("%d webhooks are given up after their last attempt", given_up)

    def _note(self, delivery: Claimed, answer: ReceiverAnswer) -> None:
        """Draws the conclusions of an attempt, to be stored with the next turn."""
        verdict = judge(answer, delivery.attempt, self._first_pause, datetime.now(UTC), random.random)
        received, endpoint, throttle = verdict.error is None, delivery.endpoint_id, verdict.throttle_seconds
        self._slots.end(endpoint, monotonic(), received=received, throttle_seconds=throttle)
        self.stats.under_way = SENDERS - self._slots.free()
        self.stats.delivered += received
        self.stats.failed += not received
        if verdict.is_gone:
            self._gone[delivery.endpoint_id] = delivery
        pause = timedelta(seconds=verdict.pause_seconds)
        self._unsettled.append(
            AttemptResult(delivery.tenant, delivery.id, delivery.attempt, answer.status, verdict.error, pause)
        )
        _log_attempt(delivery, verdict)

    def _start_sender(self) -> None:
        name = f"webhook sender {len(self._senders) + 1}"
        sender = SupervisedThread(name, self._send_next, retry=Retry(max_failures=None))
        self._senders.append(sender)
        sender.start()

    def _send_next(self) -> None:
        """A turn of a sender. Any exception of an attempt is its result, so that the slot is free again."""
        delivery = self._claimed.get()
        try:
            answer = self._client.attempt(delivery)
        except Exception:
            log.exception("an attempt to send a webhook failed in an unexpected way")
            answer = ReceiverAnswer(None, error="The attempt failed in an unexpected way.")
        crashpoint("webhook.sent")
        self._answered.put((delivery, answer))
        self.thread.wake()

    def keep_house(self) -> bool:
        """Gives up and deletes what nobody wants; whether nothing is left of it. Raises DatabaseError."""
        until = monotonic() + HOUSEKEEPING_TURN_SECONDS
        more = True
        while more:
            if self.thread.stopping or monotonic() > until:
                return False
            more = self._give_up_unwanted()
            with self._database.begin() as connection:
                more |= outbox.delete_ended(connection)
        return True

    def _give_up_unwanted(self) -> bool:
        """Gives up a batch; returns whether there may be more."""
        with self._database.begin() as connection:
            given_up = outbox.give_up_unwanted(connection)
        for one in given_up:
            self.stats.given_up += one.deliveries
            endpoint = webhook_endpoint_id(one.endpoint_id)
            log.warning("%d webhooks to endpoint %s are given up: %s", one.deliveries, endpoint, one.reason)
        return bool(given_up)


def _log_attempt(delivery: Claimed, verdict: Verdict) -> None:
    response, endpoint = response_id(delivery.response_id), webhook_endpoint_id(delivery.endpoint_id)
    what = (delivery.type, response, delivery.attempt, endpoint)
    extra = {"tenant": delivery.tenant}
    if verdict.error is None:
        log.debug("webhook %s of %s was received at attempt %d by endpoint %s", *what, extra=extra)
        return
    log.info(
        "webhook %s of %s was not received at attempt %d by endpoint %s: %s; again in %.1f s",
        *what,
        verdict.error,
        verdict.pause_seconds,
        extra=extra,
    )
