"""`truncation: "auto"` in a response whose tools the server runs: what its later turns leave out is told."""

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.acceptance.test_code_runner import tool_call
from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.fake_mcp import running_fakes
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import replay

Body = dict[str, Any]
STEPS = 16
CALLS = [tool_call("shop__add", step=f"{step:02}") for step in range(STEPS)]
ANSWERS = [
    *reversed([(f"Step {step:02}.", call) for step, call in enumerate([*CALLS[1:], "I am there."])]),
    ("Walk.", CALLS[0]),
]
LOOP: Body = {
    "model": MODEL,
    "input": "Walk.",
    "tools": [{"type": "mcp", "server_label": "shop", "require_approval": "never"}],
    "truncation": "auto",
    "enable_response_messages": True,
}


@pytest.fixture
def server(start_server: StartServer) -> Iterator[ServerProcess]:
    with running_fakes(1) as (shop,):

        def answer() -> None:
            step = shop.calls[-1]["arguments"]["step"]
            shop.text = f"Step {step}. " + "so it is, and so it was, " * 60

        shop.on_call = answer
        yield start_server(
            engine="scripted",
            scripted_context_length=4096,
            scripted_step_seconds=0.003,
            scripted_answers=json.dumps(ANSWERS),
            tool_server=f"shop={shop.url}",
            lease_seconds=2,
        )


def ended(server: ServerProcess, response: str) -> Body:
    told: Body = httpx.get(f"{server.api}/responses/{response}").json()
    return told if told["status"] in ("completed", "failed", "incomplete") else {}


def test_most_that_a_turn_left_out_is_told_also_after_a_kill(server: ServerProcess) -> None:
    whole = httpx.post(f"{server.api}/responses", json=LOOP, timeout=60).json()
    assert (whole["status"], whole["output"][-1]["content"][0]["text"]) == ("completed", "I am there.")
    retained = re.findall(r"Step (\d\d)\.", whole["input_messages"][-1]["message"])
    assert retained == [f"{step:02}" for step in range(STEPS)][-len(retained) :]
    tool_list = 1
    assert whole["dropped_items"] == tool_list + STEPS - len(retained) > tool_list
    assert ended(server, whole["id"])["dropped_items"] == whole["dropped_items"]

    body = {**LOOP, "background": True}
    cut = httpx.post(f"{server.api}/responses", json=body, timeout=60).json()["id"]
    with replay(server.url, cut) as reader:
        for frame in reader:
            if "dropped_items" in frame.json.get("response", {}):
                raise AssertionError("its first prompt left nothing out")
            if frame.event == "response.output_item.done" and "Step 14." in str(frame.json["item"]):
                break
        server.kill()
    server.start()
    resumed = eventually(partial(ended, server, cut), within=60)
    assert resumed["status"] == "completed"
    assert resumed["dropped_items"] == whole["dropped_items"]

    page = httpx.get(f"{server.url}/console/responses/{cut}", timeout=30).text
    assert f"{resumed['dropped_items']} of the oldest items" in page
