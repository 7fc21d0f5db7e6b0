import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from server.errors import Overloaded, TooManyRequests
from server.outbound_http.allowed_addresses import AllowedAddresses
from server.protocol.ids import new_uuid
from server.sealing.cipher import Seal
from server.store.webhooks.endpoints import EndpointProperties, StoredEndpoint
from server.store.webhooks.outbox import Claimed
from server.webhooks.delivery_attempt import WebhookClient
from server.webhooks.retries import ReceiverAnswer


class SlowClient(WebhookClient):
    """Has its answers once it is opened."""

    opened = threading.Event()
    asked = threading.Semaphore(0)

    def attempt(self, _delivery: Claimed) -> ReceiverAnswer:
        self.asked.release()
        assert self.opened.wait(30)
        return ReceiverAnswer(200)


def test_a_tenant_has_one_sample_under_way_and_leaves_room_for_another() -> None:
    client = SlowClient(Seal.of_this_process(), AllowedAddresses(), 1.0)
    with ThreadPoolExecutor(2) as threads:
        sent = []
        for tenant in ("first", "second"):
            sent.append(
                threads.submit(client.send_sample, _endpoint(tenant), ["sealed"], "response.completed")
            )
            assert client.asked.acquire(timeout=30)
            with pytest.raises(TooManyRequests):
                client.send_sample(_endpoint(tenant), ["sealed"], "response.completed")
        with pytest.raises(Overloaded):
            client.send_sample(_endpoint("third"), ["sealed"], "response.completed")
        client.opened.set()
        assert [one.result(30) for one in sent] == [200, 200]


def _endpoint(tenant: str) -> StoredEndpoint:
    now = datetime.now(UTC)
    return StoredEndpoint(tenant, new_uuid(), EndpointProperties(), now, now, None, None, None)
