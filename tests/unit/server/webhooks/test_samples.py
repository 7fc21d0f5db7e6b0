import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from server.errors import Overloaded, TooManyRequests
from server.protocol.ids import new_uuid
from server.store.webhooks.endpoints import EndpointProperties, StoredEndpoint
from server.webhooks.attempts import Samples, WebhookClient


class SlowClient:
    """Answers 200 once it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.asked = threading.Semaphore(0)

    def attempt(self, _delivery: object) -> Any:
        self.asked.release()
        assert self.opened.wait(30)
        return type("Answer", (), {"status": 200, "error": ""})()


def test_a_tenant_has_one_sample_under_way_and_leaves_room_for_another() -> None:
    client = SlowClient()
    samples = Samples(cast("WebhookClient", client))
    with ThreadPoolExecutor(2) as threads:
        sent = []
        for tenant in ("first", "second"):
            sent.append(threads.submit(samples.send, _endpoint(tenant), ["sealed"], "response.completed"))
            assert client.asked.acquire(timeout=30)
            with pytest.raises(TooManyRequests):
                samples.send(_endpoint(tenant), ["sealed"], "response.completed")
        with pytest.raises(Overloaded):
            samples.send(_endpoint("third"), ["sealed"], "response.completed")
        client.opened.set()
        assert [one.result(30) for one in sent] == [200, 200]


def _endpoint(tenant: str) -> StoredEndpoint:
    now = datetime.now(UTC)
    return StoredEndpoint(tenant, new_uuid(), EndpointProperties(), now, now, None, None, None)
