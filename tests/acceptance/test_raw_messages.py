"""With `enable_response_messages`, a response ends with what the model was given and gave, as tokens."""

from typing import Any

import httpx
import pytest

from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create, parse

ASKED: dict[str, Any] = {"model": MODEL, "input": "My name is Xiomara.", "enable_response_messages": True}


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("streams", [True, False])
def test_ended_response_tells_its_tokens(demo_server: ServerProcess, store: bool, streams: bool) -> None:
    body = {**ASKED, "store": store}
    if streams:
        with create(demo_server.url, body) as stream:
            events = [frame.json for frame in parse(stream.read())]
        assert all("input_messages" not in event.get("response", {}) for event in events[:-1])
        told = events[-1]["response"]
    else:
        told = httpx.post(f"{demo_server.api}/responses", json=body).json()
    (given,), (gave,) = told["input_messages"], told["output_messages"]
    assert given["type"] == gave["type"] == "raw_message_tokens"
    assert "My name is Xiomara." in given["message"]
    assert len(given["tokens"]) == told["usage"]["input_tokens"]
    assert told["output"][-1]["content"][0]["text"] in gave["message"]
    assert len(gave["tokens"]) == told["usage"]["output_tokens"]
    if store:
        assert httpx.get(f"{demo_server.api}/responses/{told['id']}").json() == told


def test_tokens_are_not_told_unless_asked_for(scripted_server: ServerProcess) -> None:
    told = httpx.post(f"{scripted_server.api}/responses", json={"model": MODEL, "input": "Hello"}).json()
    assert "input_messages" not in told
    assert "output_messages" not in told
