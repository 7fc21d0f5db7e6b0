"""Conversations that the server keeps: made, read and changed by hand."""

from typing import Any

import httpx
import pytest
from openai import NotFoundError
from openai.types.conversations import ConversationItem
from pydantic import TypeAdapter

from tests.acceptance.error_object import check_error
from tests.fix_server import Connect
from tests.support.conversing import UNKNOWN, items_of, make, post, said_in
from tests.support.server_process import ServerProcess

ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)


def test_official_client_makes_reads_changes_and_deletes_a_conversation(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    client = connect(scripted_server)
    made = client.conversations.create(metadata={"topic": "demo"})
    assert (made.object, made.metadata) == ("conversation", {"topic": "demo"})
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"topic": "other", "a": "b"})
    assert (changed.id, changed.created_at) == (made.id, made.created_at)
    assert changed.metadata == {"topic": "other", "a": "b"} == client.conversations.retrieve(made.id).metadata
    assert client.conversations.update(made.id, metadata=None).metadata == {}
    deleted = client.conversations.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
    for call in (client.conversations.retrieve, client.conversations.delete):
        with pytest.raises(NotFoundError):
            call(made.id)


EVERY_KIND: list[dict[str, object]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is it like in Oslo?"},
    {"type": "reasoning", "id": "rs_foreign", "summary": [{"type": "summary_text", "text": "Weather."}]},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    {"type": "custom_tool_call", "call_id": "c2", "name": "shell", "input": "ls"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "a.txt"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "It rains.", "annotations": []}],
    },
]


def test_an_answer_to_a_request_for_approval_names_it_by_the_id_that_it_has_in_the_conversation(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    request = {"type": "mcp_approval_request", "id": "mcpr_theirs", "server_label": "s", "name": "n"}
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_theirs", "approve": False}
    items: Any = [{**request, "arguments": "{}"}, answer]
    client = connect(scripted_server)
    conversation = client.conversations.create(items=items).id
    asked, answered = client.conversations.items.list(conversation, order="asc").model_dump()["data"]
    assert answered["approval_request_id"] == asked["id"] != "mcpr_theirs"


def test_items_of_every_kind_are_kept_in_order_and_found_again_by_their_ids(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    client = connect(scripted_server)
    conversation = client.conversations.create(items=EVERY_KIND[:2]).id  # type: ignore[arg-type]
    added = client.conversations.items.create(conversation, items=EVERY_KIND[2:])  # type: ignore[arg-type]
    assert added.object == "list"
    assert (added.first_id, added.last_id) == (added.data[0].id, added.data[-1].id)
    stored = items_of(scripted_server, conversation)
    kinds = [item.get("type", "message") for item in EVERY_KIND]
    assert [item["type"] for item in stored] == kinds
    assert [item["id"] for item in stored[2:]] == [item.id for item in added.data]
    assert len({item["id"] for item in stored}) == len(EVERY_KIND)
    assert [item["id"].split("_")[0] for item in stored[:3]] == ["msg", "msg", "rs"]
    for item in stored:
        ITEM.validate_python(item)
        found = client.conversations.items.retrieve(item["id"], conversation_id=conversation)
        assert found.to_dict() == item


def test_items_are_listed_by_pages_newest_first(scripted_server: ServerProcess, connect: Connect) -> None:
    client = connect(scripted_server)
    conversation = make(scripted_server, *(f"{n}" for n in range(20)))
    for tens in range(1, 3):
        more = [{"role": "user", "content": f"{10 * (tens + 1) + n}"} for n in range(10)]
        post(scripted_server, f"conversations/{conversation}/items", {"items": more})

    def texts(**asked: Any) -> list[int]:
        page = client.conversations.items.list(conversation, **asked)
        return [int(item.content[0].text) for item in page]  # type: ignore[union-attr, index]

    assert texts() == list(reversed(range(40)))
    assert texts(order="asc", limit=7) == list(range(40))
    first = client.conversations.items.list(
        conversation, order="asc", limit=10, include=["file_search_call.results"]
    )
    assert (len(first.data), first.has_more) == (10, True)
    assert first.last_id == first.data[-1].id
    rest = client.conversations.items.list(conversation, order="asc", limit=30, after=first.data[-1].id)  # type: ignore[arg-type]
    assert (len(rest.data), rest.has_more) == (30, False)
    newest = client.conversations.items.list(conversation, limit=20)
    assert len(newest.data) == 20


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=msg_1", "after")],
)
def test_wrong_page_is_refused_by_name(scripted_server: ServerProcess, query: str, param: str) -> None:
    conversation = make(scripted_server)
    answer = httpx.get(f"{scripted_server.api}/conversations/{conversation}/items?{query}")
    assert check_error(answer, 400, "invalid_request_error")["param"] == param


TOO_MANY = [{"role": "user", "content": "x"}] * 21
WRONG: list[tuple[str, object, str]] = [
    ("conversations", {"items": TOO_MANY}, "items"),
    ("conversations", {"items": "x"}, "items"),
    ("conversations", {"items": [{"role": "user"}]}, "items[0].content"),
    ("conversations", {"items": [{"type": "telepathy"}]}, "items[0].type"),
    ("conversations", {"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0].id"),
    ("conversations", {"items": [{"type": "compaction_trigger"}]}, "items"),
    ("conversations", {"metadata": {"a": 1}}, "metadata.a"),
    ("conversations/{}", {}, "metadata"),
    ("conversations/{}", {"metadata": {"k" * 65: "x"}}, "metadata"),
    ("conversations/{}/items", {"items": []}, "items"),
    ("conversations/{}/items", {"items": TOO_MANY}, "items"),
    ("conversations/{}/items", {}, "items"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG, ids=[f"{n}" for n, _ in enumerate(WRONG)])
def test_wrong_body_is_refused_by_name(
    scripted_server: ServerProcess, path: str, body: object, param: str
) -> None:
    answer = post(scripted_server, path.format(make(scripted_server)), body)
    status = 404 if "item_reference" in str(body) else 400
    told = check_error(answer, status, "invalid_request_error")["param"]
    assert told is not None
    assert told.startswith(param)


def test_conversation_is_made_of_nothing_at_all(scripted_server: ServerProcess) -> None:
    answer = httpx.post(f"{scripted_server.api}/conversations")
    assert answer.status_code == 200
    assert items_of(scripted_server, answer.json()["id"]) == []
    listed = httpx.get(f"{scripted_server.api}/conversations/{answer.json()['id']}/items").json()
    assert (listed["first_id"], listed["last_id"]) == (None, None)


def test_deleted_item_is_gone_and_the_conversation_is_the_answer(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    client = connect(scripted_server)
    conversation = make(scripted_server, "one", "two", "three")
    middle = items_of(scripted_server, conversation)[1]["id"]
    assert client.conversations.items.delete(middle, conversation_id=conversation).id == conversation
    assert [text for _, text in said_in(items_of(scripted_server, conversation))] == ["one", "three"]
    with pytest.raises(NotFoundError):
        client.conversations.items.retrieve(middle, conversation_id=conversation)
    with pytest.raises(NotFoundError):
        client.conversations.items.delete(middle, conversation_id=conversation)


def test_item_of_another_conversation_is_not_found(scripted_server: ServerProcess) -> None:
    ours, other = make(scripted_server, "ours"), make(scripted_server, "other")
    item = items_of(scripted_server, other)[0]["id"]
    for method in ("GET", "DELETE"):
        answer = httpx.request(method, f"{scripted_server.api}/conversations/{ours}/items/{item}")
        check_error(answer, 404, "invalid_request_error")


@pytest.mark.parametrize("strange", ["conv_1", "resp_" + "0" * 32, "%00", "%ff", "a" * 5000, UNKNOWN])
def test_strange_id_is_not_found(scripted_server: ServerProcess, strange: str) -> None:
    for path in (strange, f"{strange}/items", f"{make(scripted_server)}/items/{strange}"):
        answer = httpx.get(f"{scripted_server.api}/conversations/{path}")
        check_error(answer, 404, "invalid_request_error")
