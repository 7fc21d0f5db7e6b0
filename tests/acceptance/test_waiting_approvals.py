"""Calls that wait for an approval: operators list them, and answer over the admin API and in the console."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.console.console_client import Console
from tests.acceptance.error_object import check_error
from tests.acceptance.test_tool_tenants import ASKING, CALL
from tests.fix_server import SCRIPTED, StartServer
from tests.support.eventually import eventually
from tests.support.fake_mcp import FakeMcp, running_fakes
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.tenants import make_tenant_key

ANSWERS = json.dumps([("Found it.", "There it is."), ("Look", CALL)])


class Asking:
    """A server whose model calls a tool that wants an approval, and the keys of a tenant and an operator."""

    def __init__(self, server: ServerProcess, mcp: FakeMcp, database_url: str) -> None:
        self.server, self.mcp, self.database_url = server, mcp, database_url
        self.reader = make_tenant_key(database_url, "acme")
        words = ("keys", "create", "--tenant", "ops", "--scopes", "admin")
        self.operator = run_command(*words, database_url=database_url).stdout.strip()

    def asks(self, **more: Any) -> dict[str, Any]:
        body = {"model": MODEL, "input": "Look", "tools": [ASKING], **more}
        answer = self.request("POST", "/v1/responses", self.reader, body)
        answer.raise_for_status()
        told: dict[str, Any] = answer.json()
        assert told["output"][-1]["type"] == "mcp_approval_request"
        return told

    def request(self, method: str, path: str, key: str, body: object = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.request(method, self.server.url + path, json=body, headers=headers, timeout=60)

    def waiting(self, **query: str) -> list[dict[str, Any]]:
        path = "/admin/v1/approvals?" + "&".join(f"{name}={value}" for name, value in query.items())
        answer = self.request("GET", path, self.operator)
        answer.raise_for_status()
        listed: list[dict[str, Any]] = answer.json()["data"]
        return listed

    def answers(self, approval: str, *, approve: bool, **more: Any) -> httpx.Response:
        body = {"approve": approve, **more}
        return self.request("POST", f"/admin/v1/approvals/{approval}", self.operator, body)

    def ended(self, response: str) -> dict[str, Any]:
        """A response of the tenant, when it has ended."""

        def read() -> dict[str, Any]:
            told: dict[str, Any] = self.request("GET", f"/v1/responses/{response}", self.reader).json()
            return told

        eventually(lambda: read()["status"] == "completed", within=60)
        return read()


@pytest.fixture
def asking(start_server: StartServer, database_url: str) -> Iterator[Asking]:
    with running_fakes(1) as (mcp,):
        tools = {"tool_server": f"notes={mcp.url}", "scripted_answers": ANSWERS}
        yield Asking(start_server(**{**SCRIPTED, **tools}), mcp, database_url)


@pytest.mark.parametrize("in_conversation", [False, True])
def test_an_operator_approves_and_a_response_of_the_tenant_goes_on(
    asking: Asking, in_conversation: bool
) -> None:
    place = {}
    if in_conversation:
        made = asking.request("POST", "/v1/conversations", asking.reader, {}).json()
        place = {"conversation": made["id"]}
    first = asking.asks(**place, instructions="Be brief.")
    (listed,) = asking.waiting(tenant="acme")
    asked = first["output"][-1]
    assert {name: listed[name] for name in ("tenant", "response_id", "id", "server_label", "name")} == {
        "tenant": "acme",
        "response_id": first["id"],
        "id": asked["id"],
        "server_label": "notes",
        "name": "find",
    }
    assert listed["arguments"] == asked["arguments"]
    answer = asking.answers(listed["id"], approve=True)
    assert answer.status_code == 200, answer.text
    told = asking.ended(answer.json()["response_id"])
    assert [item["type"] for item in told["output"]] == ["mcp_call", "message"]
    assert told["output"][0]["approval_request_id"] == asked["id"]
    assert (told["instructions"], told["background"]) == ("Be brief.", True)
    assert told["previous_response_id"] == (None if in_conversation else first["id"])
    assert len(asking.mcp.calls) == 1
    assert asking.waiting() == []
    (entry,) = asking.request("GET", "/admin/v1/audit_trail?action=approval.answer", asking.operator).json()[
        "data"
    ]
    assert (entry["tenant"], entry["target"]) == ("acme", told["id"])


def test_a_call_that_is_denied_is_never_made_and_waits_no_more(asking: Asking) -> None:
    asked = asking.asks()["output"][-1]
    answer = asking.answers(asked["id"], approve=False, reason="Not today.")
    told = asking.ended(answer.json()["response_id"])
    assert "mcp_call" not in [item["type"] for item in told["output"]]
    assert (asking.mcp.calls, asking.waiting(tenant="acme")[1:]) == ([], [])
    assert (
        "waits"
        in check_error(asking.answers(asked["id"], approve=True), 404, "invalid_request_error")["message"]
    )


def test_what_its_caller_has_answered_does_not_wait(asking: Asking) -> None:
    first, second, third = (asking.asks() for _ in range(3))
    for response, approve in ((first, True), (second, False)):
        said = {
            "type": "mcp_approval_response",
            "approval_request_id": response["output"][-1]["id"],
            "approve": approve,
        }
        body = {
            "model": MODEL,
            "input": [said],
            "previous_response_id": response["id"],
            "tools": [ASKING],
            "tool_choice": "none",
        }
        asking.request("POST", "/v1/responses", asking.reader, body).raise_for_status()
    assert [listed["response_id"] for listed in asking.waiting()] == [third["id"]]


def test_the_list_is_paged_by_age_and_by_tenant(asking: Asking) -> None:
    made = [asking.asks()["id"] for _ in range(3)]
    first = asking.waiting(limit="2")
    rest = asking.waiting(limit="2", after=first[-1]["id"])
    assert [listed["response_id"] for listed in (*first, *rest)] == made
    assert [listed["response_id"] for listed in asking.waiting(order="desc")] == made[::-1]
    assert asking.waiting(tenant="globex") == []
    assert asking.request("GET", "/admin/v1/approvals?after=mcpr_0", asking.operator).status_code == 400


def test_only_operators_list_and_answer(asking: Asking) -> None:
    asked = asking.asks()["output"][-1]
    assert asking.request("GET", "/admin/v1/approvals", asking.reader).status_code == 403
    body = {"approve": True}
    path = f"/admin/v1/approvals/{asked['id']}"
    assert asking.request("POST", path, asking.reader, body).status_code == 403
    assert asking.mcp.calls == []


def test_a_tool_whose_address_is_not_stored_whole_is_answered_by_its_caller_only(
    start_server: StartServer, database_url: str
) -> None:
    with running_fakes(1) as (mcp,):
        allowed = {"mcp_hosts": f"http://127.0.0.1:{mcp.port}", "scripted_answers": ANSWERS}
        asking = Asking(start_server(**{**SCRIPTED, **allowed}), mcp, database_url)
        tool = {"type": "mcp", "server_label": "notes", "server_url": mcp.url}
        asked = asking.asks(tools=[tool])["output"][-1]
        error = check_error(asking.answers(asked["id"], approve=True), 400, "invalid_request_error")
        assert "Only the caller can answer" in error["message"]
        assert len(asking.waiting()) == 1


def test_the_console_lists_what_waits_and_answers_there(asking: Asking) -> None:
    asked = asking.asks()["output"][-1]
    with Console(asking.server, asking.operator) as console:
        page = console.get("/console/approvals").text
        assert asked["id"] in page
        assert "find" in page
        answer = console.post(f"/console/approvals/{asked['id']}", {"answer": "approve"})
        assert answer.status_code == 303, answer.text
        made = answer.headers["location"].removeprefix("/console/responses/").partition("?")[0]
        assert asking.ended(made)["output"][0]["type"] == "mcp_call"
        assert "No call waits" in console.get("/console/approvals").text
