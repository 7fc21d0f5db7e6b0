"""Calls of MCP tools that the model writes in one turn: made side by side, and after a kill not all again."""

import json
import threading
from typing import Any

import httpx

from tests.acceptance.test_code_runner import tool_call
from tests.fix_server import SCRIPTED, StartServer
from tests.support.attached import retrieve
from tests.support.eventually import eventually
from tests.support.fake_mcp import FakeMcp, running_fakes
from tests.support.server_process import MODEL

TWO = f"{tool_call('notes__find', q='what')}\n{tool_call('notes__add')}"
ANSWERS = json.dumps([("Found it.", "There they are."), ("not known", "There they are."), ("Look", TWO)])
TOOL = {"type": "mcp", "server_label": "notes", "require_approval": "never"}
BODY: dict[str, Any] = {"model": MODEL, "input": "Look", "tools": [TOOL]}


def settings(mcp: FakeMcp) -> dict[str, object]:
    return {**SCRIPTED, "tool_server": f"notes={mcp.url}", "scripted_answers": ANSWERS}


def _wait(together: threading.Barrier | threading.Event) -> None:
    together.wait(120)


def test_neither_call_of_a_turn_waits_for_the_other(start_server: StartServer) -> None:
    with running_fakes(1) as (mcp,):
        both = threading.Barrier(2)
        mcp.on_call = lambda: _wait(both)  # the first to come is answered when the second is there
        server = start_server(**settings(mcp))
        made = httpx.post(f"{server.api}/responses", json=BODY, timeout=120).json()
    assert [(item["type"], item.get("name")) for item in made["output"][1:]] == [
        ("mcp_call", "find"),
        ("mcp_call", "add"),
        ("message", None),
    ]
    assert {item["output"] for item in made["output"][1:3]} == {"Found it."}


def test_a_call_that_is_not_answered_in_time_fails_alone(start_server: StartServer) -> None:
    with running_fakes(1) as (mcp,):
        for_ever = threading.Event()
        mcp.on_call = lambda: None if mcp.calls[-1]["name"] == "add" else _wait(for_ever)
        server = start_server(**settings(mcp), mcp_seconds=2)
        made = httpx.post(f"{server.api}/responses", json=BODY, timeout=120).json()
        for_ever.set()
    find, add, message = made["output"][1:]
    assert (find["status"], find["error"]["message"]) == (
        "failed",
        "The tool gave no answer within 2 seconds.",
    )
    assert (add["status"], add["output"]) == ("completed", "Found it.")
    assert message["content"][0]["text"] == "There they are."


def test_after_a_kill_only_the_call_that_reads_is_made_again(start_server: StartServer) -> None:
    with running_fakes(1) as (mcp,):
        answering = threading.Event()
        mcp.on_call = lambda: _wait(answering)
        server = start_server(**settings(mcp))
        body = {**BODY, "background": True}
        made = httpx.post(f"{server.api}/responses", json=body, timeout=60).json()
        eventually(lambda: len(mcp.calls) == 2, within=60)
        server.kill()
        answering.set()
        server.start()
        eventually(lambda: retrieve(server, made["id"])["status"] == "completed", within=60)
        told = retrieve(server, made["id"])
    assert sorted(call["name"] for call in mcp.calls) == ["add", "add", "find"]
    find, add = (item for item in told["output"] if item["type"] == "mcp_call")
    assert "not known" in find["error"]["message"]
    assert (add["name"], add["output"]) == ("add", "Found it.")
    assert told["output"][-1]["type"] == "message"
