"""Stored chat completions through the official client: found again as they were, listed, changed, deleted."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import httpx
import psycopg
import pytest
from openai import NotFoundError, OpenAI

from tests.acceptance.error_object import check_error
from tests.acceptance.traces import as_uuid, tables_with
from tests.fix_server import Connect
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "f", "description": "Does f.", "parameters": {"type": "object"}, "strict": False},
}


@pytest.fixture
def client(scripted_server: ServerProcess, connect: Connect) -> OpenAI:
    return connect(scripted_server)


def keep(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": MODEL, "messages": HELLO, "store": True, "temperature": 1, **fields}
    )


def unfound(client: OpenAI, completion: str) -> bool:
    try:
        client.chat.completions.retrieve(completion)
    except NotFoundError:
        return True
    return False


def test_completion_is_found_as_it_was_told(client: OpenAI) -> None:
    asked: dict[str, Any] = {"seed": 5, "user": "u", "n": 3, "logprobs": True, "top_logprobs": 1}
    told = keep(client, **asked, tools=[TOOL], metadata={"a": "b"})
    found = client.chat.completions.retrieve(told.id)
    as_told = {name: value for name, value in found.model_dump().items() if name in told.model_dump()}
    assert as_told == told.model_dump()
    assert len({choice.message.content for choice in found.choices}) == 3
    more: Any = found
    assert (more.seed, more.input_user, more.temperature, more.tools) == (5, "u", 1, [TOOL])


def test_streamed_completion_is_found_once_all_of_its_choices_have_ended(client: OpenAI) -> None:
    texts = {0: "", 1: ""}
    completion = ""
    for chunk in keep(client, stream=True, n=2):
        completion = chunk.id
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    found = client.chat.completions.retrieve(completion)
    assert {choice.index: choice.message.content for choice in found.choices} == texts


def test_completion_that_cannot_be_decoded_keeps_no_other_from_being_listed(
    client: OpenAI, scripted_database: str
) -> None:
    tag = {"damaged": "one of three"}
    told = [keep(client, metadata=tag).id for _ in range(3)]
    damaged = as_uuid(told[1].removeprefix("chatcmpl-"))
    with psycopg.connect(scripted_database, autocommit=True) as connection:
        change = "update responses set request = replace(request::text, %s, %s)::json where id = %s"
        assert connection.execute(change, ('"model":', '"no model":', damaged)).rowcount == 1
        listed = client.chat.completions.list(metadata=tag, order="asc", limit=2)
        connection.execute(change, ('"no model":', '"model":', damaged))
    assert [one.id for one in listed] == [told[0], told[2]]


def test_running_completion_is_not_there_yet_and_can_be_deleted(
    paced_server: ServerProcess, connect: Connect
) -> None:
    client = connect(paced_server)
    stream = keep(client, stream=True, n=2)
    completion = next(stream).id
    assert unfound(client, completion)
    assert completion not in {one.id for one in client.chat.completions.list(order="desc").data}
    assert client.chat.completions.delete(completion).deleted
    stream.close()
    ready = f"{paced_server.url}/health/ready"
    eventually(lambda: httpx.get(ready).json().get("running", 0) == 0)
    assert unfound(client, completion)


def test_list_is_filtered_ordered_and_read_page_by_page(client: OpenAI) -> None:
    mark = {"list": "pages"}
    made = [keep(client, metadata={**mark, "number": str(number)}, n=2).id for number in range(5)]
    keep(client)
    client.responses.create(model=MODEL, input="Hello", metadata=mark)
    listed = client.chat.completions.list
    assert [one.id for one in listed(metadata=mark, limit=2)] == made
    assert [one.id for one in listed(metadata=mark, limit=2, order="desc")] == made[::-1]
    assert [one.id for one in listed(metadata={**mark, "number": "3"}, model=MODEL)] == [made[3]]
    assert listed(metadata=mark, model="other").data == []
    page = listed(metadata=mark, after=made[1], limit=1)
    assert [one.id for one in page.data] == [made[2]]
    assert page.has_more
    assert page.data[0] == client.chat.completions.retrieve(made[2])


@pytest.mark.parametrize("query", ["after=chatcmpl-1", "limit=0", "order=up"])
def test_wrong_page_is_refused_by_name(scripted_server: ServerProcess, query: str) -> None:
    error = check_error(
        httpx.get(f"{scripted_server.api}/chat/completions?{query}"), 400, "invalid_request_error"
    )
    assert error["param"] == query.partition("=")[0]


def test_metadata_is_changed_everywhere_but_in_the_stream_that_was_told(client: OpenAI) -> None:
    kept = keep(client, metadata={"old": "1"}, n=2)
    changed = client.chat.completions.update(kept.id, metadata={"new": "2"})
    assert changed == client.chat.completions.retrieve(kept.id)
    assert changed.model_dump()["metadata"] == {"new": "2"}
    assert kept.id in {one.id for one in client.chat.completions.list(metadata={"new": "2"})}
    assert client.chat.completions.list(metadata={"old": "1"}).data == []
    response = kept.id.replace("chatcmpl-", "resp_")
    assert client.responses.retrieve(response).metadata == {"new": "2"}
    (*_, last) = client.responses.retrieve(response, stream=True)
    assert last.type == "response.completed"
    assert last.response.metadata == {"old": "1"}
    assert client.chat.completions.update(kept.id, metadata=None).model_dump()["metadata"] == {}


def test_deleted_completion_leaves_nothing_of_any_choice(
    client: OpenAI, scripted_server: ServerProcess, scripted_database: str
) -> None:
    canary = "pterodactyl-in-chat"
    kept = keep(client, n=3, messages=[{"role": "user", "content": canary}])
    with psycopg.connect(scripted_database, autocommit=True) as connection:
        assert tables_with(connection, canary)
        deleted = client.chat.completions.delete(kept.id)
        assert (deleted.id, deleted.object, deleted.deleted) == (kept.id, "chat.completion.deleted", True)
        assert tables_with(connection, canary) == []
    assert unfound(client, kept.id)
    absent = httpx.delete(f"{scripted_server.api}/chat/completions/{kept.id}")
    check_error(absent, 404, "invalid_request_error")


def test_completion_that_is_not_stored_leaves_only_its_metering(
    client: OpenAI, scripted_database: str
) -> None:
    canary = "brontosaur-in-chat"
    for fields in ({"store": False}, {"store": None}, {"store": False, "stream": True}):
        said = [{"role": "user", "content": canary}]
        told = keep(client, messages=said, **fields)
        completion = {chunk.id for chunk in told}.pop() if "stream" in fields else told.id
        assert unfound(client, completion)
    with psycopg.connect(scripted_database, autocommit=True) as connection:
        assert tables_with(connection, canary) == []
        left = tables_with(connection, as_uuid(completion.removeprefix("chatcmpl-")))
    assert left == ["usage_ledger"]


SAID: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "One, "}, {"type": "text", "text": "two"}]},
    {"role": "assistant", "content": "Three."},
    {"role": "assistant", "content": "Four.", "reasoning_content": "Hm."},
    {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "done"},
    {"role": "tool", "tool_call_id": "c2", "content": "done, too"},
    {"role": "assistant", "content": None, "refusal": "No."},
    {"role": "user", "content": "Thanks"},
]


def test_messages_of_a_completion_are_those_that_it_was_given(client: OpenAI) -> None:
    kept = keep(client, messages=SAID, tools=[TOOL], n=2)
    found = [one.model_dump(exclude_none=True) for one in client.chat.completions.messages.list(kept.id)]
    assert [one.pop("id") for one in found] == [f"{kept.id}-{place}" for place in range(len(SAID))]
    parts = SAID[1]["content"]
    expected = [*SAID]
    expected[1] = {"role": "user", "content": "One, two", "content_parts": parts}
    expected[7] = {"role": "assistant", "refusal": "No."}
    assert found == expected
    listed = client.chat.completions.messages.list
    newest = listed(kept.id, order="desc", limit=2, after=f"{kept.id}-8")
    assert [one.id for one in newest.data] == [f"{kept.id}-7", f"{kept.id}-6"]
    assert newest.has_more


def again(server: ServerProcess, key: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": HELLO, "n": 3, "temperature": 1, **fields}
    headers = {"Idempotency-Key": key}
    return httpx.post(f"{server.api}/chat/completions", json=body, headers=headers, timeout=60)


@pytest.mark.parametrize("streamed", [False, True])
def test_request_that_is_sent_again_has_the_choices_of_the_first(
    scripted_server: ServerProcess, streamed: bool
) -> None:
    first, second = (
        again(scripted_server, f"three choices {streamed}", store=True, stream=streamed) for _ in range(2)
    )
    assert first.status_code == 200
    assert sorted(second.text.split("\n\n")) == sorted(first.text.split("\n\n"))
    assert again(scripted_server, f"three choices {streamed}", n=2).status_code == 400


def test_unstored_requests_that_are_sent_again_join_the_first_and_begin_nothing(
    paced_server: ServerProcess, paced_database: str
) -> None:
    """Most of them come while the first is being accepted."""
    ledger, keys, senders = "select count(*) from usage_ledger where not stored", 5, 6
    together = Barrier(senders)

    def send(key: int) -> httpx.Response:
        together.wait()
        return again(paced_server, f"joined {key}", store=False, max_tokens=50, stream=True)

    with psycopg.connect(paced_database, autocommit=True) as connection, ThreadPoolExecutor(senders) as pool:
        before = connection.execute(ledger).fetchone()
        answers = [list(pool.map(send, [key] * senders)) for key in range(keys)]
        after = connection.execute(ledger).fetchone()
    for of_one_key in answers:
        assert {answer.status_code for answer in of_one_key} == {200}
        assert len({"".join(sorted(answer.text.split("\n\n"))) for answer in of_one_key}) == 1
    assert before is not None
    assert after == (before[0] + 3 * keys,)
