"""F49: server and embedded Postgres die at the moment at which a tool call arrives at the tool's server."""

import json
from pathlib import Path
from threading import Event

import pytest

from server.hosted_tools.tool_loop import STOPPED
from tests.acceptance.test_code_runner import tool_call
from tests.fix_tally import Tally
from tests.support.attached import HTTP, Body, retrieve
from tests.support.eventually import eventually
from tests.support.fake_mcp import FakeMcp, running_fakes
from tests.support.powered_server import PoweredServer
from tests.support.server_process import MODEL, ServerProcess

pytestmark = pytest.mark.faults

ROUNDS = 25
PATIENCE_S = 60.0
TOOL = {"type": "mcp", "server_label": "shop", "require_approval": "never"}
ANSWERS = json.dumps(
    [
        ("Found it.", "It is bought."),
        (STOPPED, "Nobody knows."),
        *((f"Buy {number:03}.", tool_call("shop__find", q=f"{number:03}")) for number in range(ROUNDS)),
    ]
)


@pytest.mark.parametrize("durability", ["strict", "normal"])
def test_a_call_that_arrives_as_the_power_is_cut_is_not_made_again(
    made_dir: Path, durability: str, tally: Tally
) -> None:
    with running_fakes(1) as (shop,):
        settings = {"durability": durability, "tool_server": f"shop={shop.url}", "scripted_answers": ANSWERS}
        with PoweredServer(made_dir, **settings) as powered:
            for number in range(ROUNDS):
                answered = buy(powered, shop, number)
                tally["F49", f"calls cut off as they arrived, {durability}"] += 1
                tally["F49", f"answered as unknown, {durability}"] += answered
    made = [call["arguments"]["q"] for call in shop.calls]
    assert sorted(made) == [f"{number:03}" for number in range(ROUNDS)]


def buy(powered: PoweredServer, shop: FakeMcp, number: int) -> bool:
    """One call that cuts the power; returns whether the model was told that its result is not known."""
    arrived, cut = Event(), Event()

    def cut_power() -> None:
        powered.cut()
        arrived.set()
        cut.wait(PATIENCE_S)

    shop.on_call = cut_power
    body = {"model": MODEL, "input": f"Buy {number:03}.", "tools": [TOOL], "background": True}
    answer = HTTP.post(f"{powered.process.api}/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert arrived.wait(PATIENCE_S)
    cut.set()
    shop.on_call = lambda: None
    powered.start()
    final = await_end(powered.process, answer.json()["id"])
    assert final["status"] == "completed", final
    calls = [item for item in final["output"] if item["type"] == "mcp_call"]
    return [STOPPED in str(call) for call in calls] == [True]


def await_end(server: ServerProcess, response_id: str) -> Body:
    def final() -> Body | None:
        response = retrieve(server, response_id)
        return None if response["status"] in ("queued", "in_progress") else response

    return eventually(final, within=PATIENCE_S) or {}
