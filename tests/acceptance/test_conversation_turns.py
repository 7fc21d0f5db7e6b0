"""Responses in a conversation: what they read of it, and what they leave in it."""

from typing import Any

import httpx
import psycopg
import pytest
from openai import OpenAI

from tests.acceptance.error_object import check_error
from tests.acceptance.sdk_types import check_response
from tests.fix_server import Connect, StartServer
from tests.support.conversing import UNKNOWN, items_of, make, post, respond, said_in
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.sse import create as create_stream


def test_model_recalls_name_when_it_was_told_in_the_conversation(
    demo_server: ServerProcess, connect: Connect
) -> None:
    client = connect(demo_server)
    conversation = client.conversations.create().id
    told = client.responses.create(model=MODEL, input="My name is Xiomara.", conversation=conversation)
    asked = client.responses.create(model=MODEL, input="What is my name?", conversation={"id": conversation})
    assert "Xiomara" in asked.output_text
    assert told.conversation is not None
    assert told.conversation.id == conversation
    stored = items_of(demo_server, conversation)
    assert said_in(stored) == [
        ("user", "My name is Xiomara."),
        ("assistant", told.output_text),
        ("user", "What is my name?"),
        ("assistant", asked.output_text),
    ]
    assert [stored[1]["id"], stored[3]["id"]] == [told.output[0].id, asked.output[0].id]


def test_what_was_put_by_hand_and_what_was_deleted_counts_for_the_next_turn(
    demo_server: ServerProcess, connect: Connect
) -> None:
    client = connect(demo_server)
    said = [
        {"role": "user", "content": "My name is Leopold."},
        {"role": "assistant", "content": "Nice to meet you, Leopold."},
    ]
    conversation = client.conversations.create(items=said).id  # type: ignore[arg-type]
    ask = {"model": MODEL, "input": "What is my name?", "conversation": conversation, "store": False}
    assert "Leopold" in client.responses.create(**ask).output_text  # type: ignore[call-overload]
    for item in items_of(demo_server, conversation):
        client.conversations.items.delete(item["id"], conversation_id=conversation)
    assert "Leopold" not in client.responses.create(**ask).output_text  # type: ignore[call-overload]


def test_session_of_an_agent_is_kept_through_items(scripted_server: ServerProcess, connect: Connect) -> None:
    """What openai-agents' OpenAIConversationsSession does: it adds, reads back, pops and clears by itself."""
    client: OpenAI = connect(scripted_server)
    session = client.conversations.create(items=[]).id
    turn: list[Any] = [{"role": "user", "content": "Hi"}]
    answer = client.responses.create(model=MODEL, input=turn)
    client.conversations.items.create(session, items=turn)
    client.conversations.items.create(session, items=[item.to_dict() for item in answer.output])  # type: ignore[misc]
    latest = client.conversations.items.list(session, limit=1, order="desc").data
    assert latest[0].to_dict()["content"][0]["text"] == answer.output_text  # type: ignore[index]
    history = [item.to_dict() for item in client.conversations.items.list(session, order="asc")]
    again = client.responses.create(model=MODEL, input=[*history, turn[0]])  # type: ignore[list-item]
    assert again.status == "completed"
    popped = client.conversations.items.list(session, limit=1, order="desc").data[0]
    client.conversations.items.delete(popped.id, conversation_id=session)  # type: ignore[arg-type]
    assert said_in(items_of(scripted_server, session)) == [("user", "Hi")]
    client.conversations.delete(session)


def test_response_and_stream_tell_their_conversation(scripted_server: ServerProcess) -> None:
    conversation = make(scripted_server)
    body = {"model": MODEL, "input": "Hello", "conversation": {"id": conversation}}
    with create_stream(scripted_server.url, body) as stream:
        frames = list(stream)
    final = frames[-1].json["response"]
    assert frames[0].json["response"]["conversation"] == final["conversation"] == {"id": conversation}
    stored = httpx.get(f"{scripted_server.api}/responses/{final['id']}")
    assert check_response(stored.content).conversation is not None
    assert stored.json() == final
    alone = post(scripted_server, "responses", {"model": MODEL, "input": "Hello"}).json()
    assert "conversation" not in alone


def test_response_without_input_goes_on_with_the_conversation(scripted_server: ServerProcess) -> None:
    conversation = make(scripted_server, "Hello")
    answer = post(scripted_server, "responses", {"model": MODEL, "conversation": conversation})
    assert answer.json()["status"] == "completed"
    assert [role for role, _ in said_in(items_of(scripted_server, conversation))] == ["user", "assistant"]


def test_output_of_a_call_finds_its_call_in_the_conversation(scripted_server: ServerProcess) -> None:
    call = {"type": "function_call", "call_id": "c9", "name": "weather", "arguments": "{}"}
    conversation = post(scripted_server, "conversations", {"items": [call]}).json()["id"]
    output = [{"type": "function_call_output", "call_id": "c9", "output": "rain"}]
    assert respond(scripted_server, conversation, output).status_code == 200  # type: ignore[arg-type]
    unmatched = respond(scripted_server, make(scripted_server), output)  # type: ignore[arg-type]
    assert check_error(unmatched, 400, "invalid_request_error")["param"] == "input"


def test_item_of_a_conversation_may_be_referred_to(scripted_server: ServerProcess) -> None:
    conversation = make(scripted_server, "Once upon a time")
    reference = [{"type": "item_reference", "id": items_of(scripted_server, conversation)[0]["id"]}]
    other = post(scripted_server, "conversations", {"items": reference}).json()["id"]
    assert said_in(items_of(scripted_server, other)) == [("user", "Once upon a time")]
    body = {"model": MODEL, "input": reference}
    assert post(scripted_server, "responses", body).status_code == 200


def test_conversation_and_previous_response_exclude_each_other(scripted_server: ServerProcess) -> None:
    conversation = make(scripted_server)
    first = respond(scripted_server, conversation).json()["id"]
    answer = respond(scripted_server, conversation, previous_response_id=first)
    error = check_error(answer, 400, "invalid_request_error")
    assert (error["param"], error["code"]) == ("conversation", "mutually_exclusive_parameters")


@pytest.mark.parametrize("given", [UNKNOWN, "conv_1", {"id": UNKNOWN}])
def test_response_in_an_unknown_conversation_is_not_found(
    scripted_server: ServerProcess, given: object
) -> None:
    answer = respond(scripted_server, given)  # type: ignore[arg-type]
    assert check_error(answer, 404, "invalid_request_error")["param"] == "conversation"


def test_response_that_is_not_stored_reads_the_conversation_and_leaves_it_as_it_is(
    scripted_server: ServerProcess,
) -> None:
    conversation = make(scripted_server, "Hello")
    before = items_of(scripted_server, conversation)
    answer = respond(scripted_server, conversation, store=False).json()
    assert answer["conversation"] == {"id": conversation}
    alone = post(scripted_server, "responses", {"model": MODEL, "input": "Hello", "store": False}).json()
    assert answer["usage"]["input_tokens"] > alone["usage"]["input_tokens"]
    assert items_of(scripted_server, conversation) == before


def test_responses_stay_when_their_conversation_is_deleted_and_items_when_their_response_is(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(send_seconds=0.1)
    conversation = make(server)
    first, second, third = (respond(server, conversation, f"{n}").json() for n in range(3))
    stored = items_of(server, conversation)
    assert httpx.delete(f"{server.api}/responses/{first['id']}").status_code == 200
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "update responses set expires_at = 'epoch' where id = %s::uuid",
            [second["id"].removeprefix("resp_")],
        )

    def purge() -> str:
        ended = run_command("purge", database_url=database_url, send_seconds=0.1)
        return ended.stdout

    eventually(lambda: purge().startswith("Purged 1 "))
    assert httpx.get(f"{server.api}/responses/{second['id']}").status_code == 404
    assert items_of(server, conversation) == stored
    assert respond(server, conversation, "and on").json()["status"] == "completed"
    assert httpx.delete(f"{server.api}/conversations/{conversation}").status_code == 200
    assert httpx.get(f"{server.api}/responses/{third['id']}").json() == third
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert connection.execute("select count(*) from conversation_items").fetchone() == (0,)
