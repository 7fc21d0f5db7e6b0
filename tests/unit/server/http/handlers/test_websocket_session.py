"""What a WebSocket session that has ended still counts for its tenant: nothing."""

from types import SimpleNamespace
from typing import Any, cast

from server.http.handlers.websocket_session import SocketSession
from server.limits import SharedLimit

LAST = b'{"response": {"id": "resp_1", "status": "completed", "store": false, "output": []}}'


def test_a_session_that_ends_while_a_response_is_being_retained_gives_its_bytes_back() -> None:
    rates = SimpleNamespace(look=lambda _caller: None, headers=lambda _caller: {})
    services = SimpleNamespace(
        admission=SimpleNamespace(rates=rates), config=SimpleNamespace(max_body_bytes=1000)
    )
    limit = SharedLimit("bytes", total=1000, per_tenant=1000)
    caller = SimpleNamespace(tenant="ana")
    session = SocketSession(cast("Any", services), cast("Any", None), cast("Any", caller), limit)
    session.end(cast("Any", None), LAST)
    assert limit.used("ana") == len(LAST)
    session.close()
    session.end(cast("Any", None), LAST)
    assert limit.used("ana") == 0
