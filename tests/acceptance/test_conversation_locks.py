"""One response at a time in a conversation, appended once, whatever its end and whatever crashed."""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.acceptance.error_object import check_error
from tests.fix_server import Connect, StartServer
from tests.support.conversing import ended, get_a_turn, items_of, make, respond, said_in
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create as create_stream
from tests.support.sse import parse

PACED: dict[str, object] = {"scripted_tokens": 200, "scripted_step_seconds": 0.01}


def test_of_twenty_responses_at_once_one_runs_and_the_others_are_told_to_come_back(
    paced_server: ServerProcess, connect: Connect
) -> None:
    server = paced_server
    conversation = make(server)
    with ThreadPoolExecutor(20) as pool:
        answers = list(
            pool.map(lambda n: respond(server, conversation, f"Turn {n}", max_output_tokens=100), range(20))
        )
    taken = [answer for answer in answers if answer.status_code == 200]
    assert len(taken) == 1
    for answer in answers:
        if answer not in taken:
            error = check_error(answer, 400, "invalid_request_error")
            assert (error["code"], error["param"]) == ("conversation_locked", "conversation")
            assert answer.headers["x-should-retry"] == "true"
            assert int(answer.headers["retry-after"]) > 0
    stored = items_of(server, conversation)
    assert [item["role"] for item in stored] == ["user", "assistant"]
    assert stored[1]["id"] == taken[0].json()["output"][0]["id"]
    with pytest.raises(NotFoundError):
        connect(server).conversations.items.retrieve("msg_1", conversation_id=conversation)


def test_clients_that_try_again_all_get_their_turn(scripted_server: ServerProcess) -> None:
    server = scripted_server
    conversation = make(server)

    def insist(n: int) -> str:
        answer = get_a_turn(server, conversation, f"Turn {n}")
        identifier: str = answer.json()["output"][0]["id"]
        return identifier

    with ThreadPoolExecutor(8) as pool:
        outputs = set(pool.map(insist, range(8)))
    stored = items_of(server, conversation)
    assert [item["role"] for item in stored] == ["user", "assistant"] * 8
    assert {item["id"] for item in stored[1::2]} == outputs
    assert {text for role, text in said_in(stored) if role == "user"} == {f"Turn {n}" for n in range(8)}


def test_of_clients_on_two_replicas_one_has_its_turn_at_a_time_and_none_is_lost_or_doubled(
    start_server: StartServer,
) -> None:
    replicas = [start_server(scripted_tokens=5, scripted_step_seconds=0.02) for _ in range(2)]
    conversation = make(replicas[0])

    def turn(n: int) -> list[httpx.Response]:
        answers = [respond(replicas[n % 2], conversation, f"Turn {n}")]
        while answers[-1].status_code == 400:
            assert answers[-1].json()["error"]["code"] == "conversation_locked"
            answers.append(respond(replicas[(n + len(answers)) % 2], conversation, f"Turn {n}"))
        return answers

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(turn, range(8)))
    assert all(tries[-1].status_code == 200 for tries in answers)
    assert sum(map(len, answers)) > len(answers), "some met another one's turn"
    stored = items_of(replicas[1], conversation)
    assert [item["role"] for item in stored] == ["user", "assistant"] * 8
    for (_, question), answer in zip(said_in(stored)[::2], stored[1::2], strict=True):
        asked = answers[int(question.removeprefix("Turn "))][-1].json()
        assert answer["id"] == asked["output"][0]["id"], "the answer is to the question before it"


def test_official_client_waits_for_its_turn_by_itself(paced_server: ServerProcess) -> None:
    server = paced_server
    conversation = make(server)
    first = respond(server, conversation, background=True, max_output_tokens=16).json()["id"]
    with OpenAI(base_url=server.api, api_key="none", max_retries=5) as client:
        second = client.responses.create(
            model=MODEL, input="Me too.", conversation=conversation, max_output_tokens=16
        )
    assert second.status == "incomplete"
    assert [text for _, text in said_in(items_of(server, conversation))][2] == "Me too."
    assert ended(server, first)["status"] == "incomplete"


def test_nothing_changes_in_a_conversation_while_a_response_runs(
    paced_server: ServerProcess, connect: Connect
) -> None:
    server = paced_server
    client = connect(server)
    conversation = make(server, "Hello")
    item = items_of(server, conversation)[0]["id"]
    running = respond(server, conversation, background=True).json()["id"]
    changes: list[Callable[[], object]] = [
        lambda: client.conversations.items.create(conversation, items=[{"role": "user", "content": "x"}]),
        lambda: client.conversations.items.delete(item, conversation_id=conversation),
        lambda: client.conversations.delete(conversation),
    ]
    for change in changes:
        with pytest.raises(BadRequestError) as refused:
            change()
        assert refused.value.code == "conversation_locked"
    assert client.conversations.update(conversation, metadata={"a": "b"}).metadata == {"a": "b"}
    httpx.post(f"{server.api}/responses/{running}/cancel", timeout=60)
    for change in changes:
        change()


def test_cancelled_response_leaves_its_input_and_what_it_had(paced_server: ServerProcess) -> None:
    server = paced_server
    conversation = make(server)
    body = {"model": MODEL, "input": "Go on.", "conversation": conversation, "background": True}
    with create_stream(server.url, body) as stream:
        response = stream.take(12)[0].json["response"]["id"]
        httpx.post(f"{server.api}/responses/{response}/cancel", timeout=60)
    final = ended(server, response)
    assert final["status"] == "cancelled"
    stored = items_of(server, conversation)
    assert said_in(stored)[0] == ("user", "Go on.")
    assert stored[1:] == final["output"]
    assert stored[1]["status"] == "incomplete"


def test_failed_response_leaves_its_input_and_what_it_had(start_server: StartServer) -> None:
    server = start_server(**PACED)
    conversation = make(server)
    body = {"model": MODEL, "input": "Go on.", "conversation": conversation}
    with create_stream(server.url, body) as stream:
        response = stream.take(12)[0].json["response"]["id"]
        server.kill()
    server.start()
    final = ended(server, response)
    assert final["status"] == "failed"
    stored = items_of(server, conversation)
    assert said_in(stored)[0] == ("user", "Go on.")
    assert stored[1:] == final["output"] != []
    assert respond(server, conversation, "Again.", max_output_tokens=16).status_code == 200


def test_response_deleted_while_it_runs_leaves_nothing(paced_server: ServerProcess) -> None:
    server = paced_server
    conversation = make(server, "Hello")
    body = {"model": MODEL, "input": "Go on.", "conversation": conversation, "background": True}
    with create_stream(server.url, body) as stream:
        response = stream.take(8)[0].json["response"]["id"]
        assert httpx.delete(f"{server.api}/responses/{response}").status_code == 200
    get_a_turn(server, conversation, "Next.", max_output_tokens=16)
    assert [text for _, text in said_in(items_of(server, conversation))][:2] == ["Hello", "Next."]


def test_turn_goes_on_after_kill_nine_with_the_same_history_and_is_appended_once(
    start_server: StartServer,
) -> None:
    server = start_server(**PACED)
    ask: dict[str, object] = {"background": True, "seed": 11, "temperature": 1}
    uncut, cut = make(server, "My name is Penelope."), make(server, "My name is Penelope.")
    whole = ended(server, respond(server, uncut, "What is my name?", **ask).json()["id"])
    body = {"model": MODEL, "input": "What is my name?", "conversation": cut, **ask}
    with create_stream(server.url, body) as stream:
        seen = b"".join(frame.raw for frame in stream.take(60))
        server.kill()
    server.start()
    final = ended(server, parse(seen)[0].json["response"]["id"])
    assert final["status"] == "completed"
    assert final["output"][0]["content"] == whole["output"][0]["content"]
    stored = items_of(server, cut)
    assert said_in(stored) == said_in(items_of(server, uncut))
    assert [item["id"] for item in stored[2:]] == [item["id"] for item in final["output"]]
    assert len(stored) == 3


@pytest.mark.parametrize("where", ["accept.written", "accept.committed", "recorder.written", "claim.rebuilt"])
def test_turn_is_appended_once_wherever_the_server_died(start_server: StartServer, where: str) -> None:
    server = start_server(crash_at=where)
    conversation = make(server, "Hello")
    with contextlib.suppress(httpx.HTTPError):
        respond(server, conversation, background=True)
    assert server.wait() == 137
    other = start_server()
    get_a_turn(other, conversation, "Next.")
    texts = [text for role, text in said_in(items_of(other, conversation)) if role == "user"]
    expected = ["Next."] if where == "accept.written" else ["Hello", "Next."]
    assert texts == ["Hello", *expected]


def test_key_of_a_running_turn_leads_to_it_in_place_of_a_refusal(paced_server: ServerProcess) -> None:
    server = paced_server
    conversation = make(server)

    def send(_: int) -> httpx.Response:
        body = {"model": MODEL, "input": "Once.", "conversation": conversation, "max_output_tokens": 50}
        headers = {"idempotency-key": f"only-once-{conversation}"}
        return httpx.post(f"{server.api}/responses", json=body, headers=headers, timeout=60)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(send, range(6)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(items_of(server, conversation)) == 2
