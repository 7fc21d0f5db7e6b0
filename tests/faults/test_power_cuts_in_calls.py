"""F49: a server, or it and its Postgres, die in the moment at which a tool call arrives at its server."""

import json
import os
import signal
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


SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
SHELL_ROUNDS = 6
CALLS = 3
RAN = [{"stdout": "Done.", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]


def shell_answers() -> str:
    """Each round's response makes its calls one after the other, whatever they gave."""
    answers: list[tuple[str, str]] = []
    for number in range(SHELL_ROUNDS):
        calls = [tool_call("container__shell", commands=[f"run {number}.{n}"]) for n in range(CALLS)]
        keys = [f"Go {number}.", *(f"run {number}.{n}" for n in range(CALLS))]
        answers += reversed(list(zip(keys, [*calls, "I am through."], strict=True)))
    return json.dumps(answers)


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("power", [False, True])
def test_commands_of_a_shell_that_are_cut_off_are_run_again_only_if_they_may_be(
    made_dir: Path, tally: Tally, *, power: bool, repeatable: bool
) -> None:
    with running_fakes(1) as (container,):
        schema = {"type": "object", "properties": {"commands": {"type": "array"}}}
        hints = {"readOnlyHint": repeatable}
        container.tools = [{"name": "shell", "inputSchema": schema, "annotations": hints}]
        container.text = json.dumps(RAN)
        tools = f"container={container.url}"
        with PoweredServer(made_dir, tool_server=tools, scripted_answers=shell_answers()) as powered:
            for number in range(SHELL_ROUNDS):
                run_shell(powered, container, number, power=power, repeatable=repeatable)
                tally["F49", "commands of a shell cut off as they arrived"] += 1


def run_shell(
    powered: PoweredServer, container: FakeMcp, number: int, *, power: bool, repeatable: bool
) -> None:
    """One response, whose server dies in one of its calls."""
    arrived, died = Event(), number % CALLS
    container.calls.clear()
    container.headers.clear()

    def die() -> None:
        if len(container.calls) == died + 1 and not arrived.is_set():
            powered.cut() if power else os.killpg(powered.process.pid, signal.SIGKILL)
            arrived.set()

    container.on_call = die
    body = {"model": MODEL, "input": f"Go {number}.", "tools": [SHELL], "background": True}
    response = HTTP.post(f"{powered.process.api}/responses", json=body).raise_for_status().json()["id"]
    assert arrived.wait(PATIENCE_S)
    powered.start()
    final = await_end(powered.process, response)
    assert (final["status"], final["output"][-1]["content"][0]["text"]) == ("completed", "I am through.")
    due = list(range(CALLS)) + [died] * repeatable
    made = [call["arguments"]["commands"] for call in container.calls]
    assert made == [[f"run {number}.{n}"] for n in sorted(due)]
    outputs = [item["output"] for item in final["output"] if item["type"] == "shell_call_output"]
    unknown = [STOPPED in output[0]["stderr"] for output in outputs]
    assert unknown == [n == died and not repeatable for n in range(CALLS)]
    assert [output for output, is_unknown in zip(outputs, unknown, strict=True) if not is_unknown] == [
        RAN for is_unknown in unknown if not is_unknown
    ]
    goes_on = [
        "x-session-goes-on" in headers for method, headers in container.headers if method == "tools/call"
    ]
    assert goes_on == [n > 0 for n in sorted(due)]


def await_end(server: ServerProcess, response_id: str) -> Body:
    def final() -> Body | None:
        response = retrieve(server, response_id)
        return None if response["status"] in ("queued", "in_progress") else response

    return eventually(final, within=PATIENCE_S) or {}
