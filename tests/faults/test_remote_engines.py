"""F20: engine servers that die, hang, lie or leave, and replicas that die while engines generate for them."""

import random
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from server.recovery.claimer import CHANGED
from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.attached import (
    HTTP,
    PATIENCE_S,
    Attached,
    Body,
    Crowd,
    Times,
    ask,
    check,
    check_whole,
    output_text,
    retrieve,
    uncut,
)
from tests.support.engine_process import EngineServerProcess
from tests.support.eventually import eventually
from tests.support.fake_vllm_faults import STREAM, answers, events
from tests.support.rounds import faults_only
from tests.support.server_process import ServerProcess

TOKENS = 150
STEP_S = 0.01
STREAMS = 8
HANG_S = 3.0
ABORT_S = 5.0
"""After the adoption of a dead replica's response, its former call has ended at the engine."""

Engines = list[EngineServerProcess]


@pytest.fixture
def engines() -> Iterator[Engines]:
    """Two, of which each answer takes about two seconds."""
    processes = [EngineServerProcess(length=TOKENS, step_seconds=STEP_S) for _ in range(2)]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            process.stop()


def settings_of(engines: Engines, **more: object) -> dict[str, object]:
    urls = ",".join(engine.url for engine in engines)
    return {"engine": "vllm", "engine_url": urls, "hang_seconds": HANG_S, **more}


def greedy(choose: random.Random, *, background: bool = False, **more: object) -> Body:
    return {**ask(1, choose, background=background), **more}


def begin(crowd: Crowd, choose: random.Random, count: int = STREAMS) -> list[Attached]:
    """So many clients, each of which has begun to receive its answer."""
    clients = [Attached(greedy(choose, background=n % 2 == 0), Times()) for n in range(count)]
    crowd.start(*clients)
    eventually(lambda: all(b"output_text.delta" in one.received for one in clients), within=PATIENCE_S)
    return clients


def check_undisturbed(clients: list[Attached], server: ServerProcess) -> int:
    """Each client had one whole stream, with the text of an engine to which nothing happens."""
    assert [client.attempts for client in clients] == [1] * len(clients)
    assert {client.final["status"] for client in clients} == {"completed"}
    return check(clients, server)


def busiest(engines: Engines) -> EngineServerProcess:
    return max(engines, key=lambda engine: len(engine.running))


# Death


@pytest.mark.parametrize("kills", [3, *faults_only(60)])
def test_engines_that_are_killed_in_mid_stream_cost_no_token(
    start_server: StartServer, engines: Engines, kills: int, tally: Tally
) -> None:
    server = start_server(**settings_of(engines))
    choose, pauses, hit = random.Random(kills), list[float](), 0
    with Crowd(lambda: server) as crowd:
        for _ in range(kills):
            begin(crowd, choose)
            victim = busiest(engines)
            hit += len(victim.running)
            victim.kill()
            victim.start()
        crowd.finish(within=2 * PATIENCE_S)
    tally["F20", "tokens compared across killed engines"] += check_undisturbed(crowd.clients, server)
    for client in crowd.clients:
        assert isinstance(client.countdown, Times)
        pauses.append(client.countdown.longest_pause)
    pauses.sort()
    tally["F20", "engines killed"] += kills
    tally["F20", "calls on engines that were killed"] += hit
    tally["F20", "ms of the longest pause of a stream, p99"] = round(1000 * pauses[int(len(pauses) * 0.99)])
    tally["F20", "ms of the longest pause of a stream, p50"] = round(1000 * pauses[len(pauses) // 2])
    assert hit >= kills


@pytest.mark.faults
def test_while_all_engines_are_down_responses_wait(
    start_server: StartServer, engines: Engines, tally: Tally
) -> None:
    server = start_server(**settings_of(engines))
    with Crowd(lambda: server) as crowd:
        begin(crowd, random.Random(1))
        for engine in engines:
            engine.kill()
        eventually(lambda: HTTP.get(f"{server.url}/health/ready").status_code == 503, within=PATIENCE_S)
        for engine in engines:
            engine.start()
        crowd.finish()
    tally["F20", "tokens compared across outages"] += check_undisturbed(crowd.clients, server)


def test_after_the_longest_outage_a_response_fails_with_a_sentence(
    start_server: StartServer, engines: Engines
) -> None:
    server = start_server(**settings_of(engines, engine_outage_seconds=1))
    with Crowd(lambda: server) as crowd:
        client = Attached(greedy(random.Random(2)))
        crowd.start(client)
        eventually(lambda: b"output_text.delta" in client.received, within=PATIENCE_S)
        for engine in engines:
            engine.kill()
        crowd.finish()
    final = check_whole(client, server)
    assert (final["status"], final["error"]["code"]) == ("failed", "server_error")
    assert len(output_text(final)) > 0


# Misbehaviour

SAME_TEXT = [
    *sorted(STREAM.keys() - {"die", "stall"}), *sorted(events().keys() - {"few_logprobs"}), "endless_line",
    "endless_comments", *sorted(answers()), "401", "404", "429", "500", "503",
]  # fmt: skip


def answer_of(server: ServerProcess, body: Body) -> dict[str, Any]:
    answer = HTTP.post(f"{server.api}/responses", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.faults
def test_an_engine_that_answers_rubbish_of_any_kind_changes_no_text(
    start_server: StartServer, engines: Engines, tally: Tally
) -> None:
    server, wrong = start_server(**settings_of(engines)), list[str]()
    body = greedy(random.Random(3), max_output_tokens=20)
    (expected,) = uncut(server, [body])
    for kind in SAME_TEXT:
        for engine in engines:
            engine.misbehave(kind, at=5)
        response = answer_of(server, body)
        for engine in engines:
            engine.clear()
        if response["status"] not in ("completed", "incomplete") or output_text(response) != expected:
            wrong.append(f"{kind}: {response['status']} {response['error']}")
        tally["F20", "kinds of rubbish"] += 1
    assert wrong == []
    assert all(not engine.running for engine in engines)


def test_a_refused_call_fails_its_response_and_no_other(start_server: StartServer, engines: Engines) -> None:
    server = start_server(**settings_of(engines))
    for engine in engines:
        engine.misbehave("400")
    body = greedy(random.Random(4), max_output_tokens=20)
    assert answer_of(server, body)["status"] == "failed"
    for engine in engines:
        engine.clear()
    assert answer_of(server, body)["status"] == "incomplete"


@pytest.mark.faults
def test_an_engine_that_fails_every_call_is_left_to_itself(
    start_server: StartServer, engines: Engines
) -> None:
    server = start_server(**settings_of(engines))
    engines[0].misbehave("500", times=-1)
    for number in range(20):
        response = answer_of(server, greedy(random.Random(number), max_output_tokens=5))
        assert response["status"] == "incomplete", response["error"]


@pytest.mark.faults
@pytest.mark.parametrize("how", ["cut", *faults_only("stall", "freeze", "strand")])
def test_an_engine_that_falls_silent_loses_its_calls_to_another(
    start_server: StartServer, engines: Engines, how: str, tally: Tally
) -> None:
    server = start_server(**settings_of(engines))
    with Crowd(lambda: server) as crowd:
        begin(crowd, random.Random(5))
        silent = busiest(engines)
        if how == "freeze":
            with silent.frozen():
                crowd.finish()
        else:
            if how == "stall":
                silent.set(stalled=True)
            elif how == "cut":
                silent.cut()
            else:
                silent.strand()
            crowd.finish()
            silent.clear()
    tally["F20", "tokens compared across silent engines"] += check_undisturbed(crowd.clients, server)
    if how == "strand":
        eventually(lambda: silent.running == [], within=PATIENCE_S)


def tokens_of(engines: Engines) -> int:
    return sum(int(engine.state()["tokens"]) for engine in engines)


@pytest.mark.faults
def test_a_slow_engine_keeps_its_calls(start_server: StartServer, engines: Engines) -> None:
    server = start_server(**settings_of(engines))
    with Crowd(lambda: server) as crowd:
        begin(crowd, random.Random(6), 2)
        for engine in engines:
            engine.set(step_seconds=HANG_S / 4)
        slow_from = tokens_of(engines)
        eventually(lambda: tokens_of(engines) > slow_from + 8, within=PATIENCE_S)
        for engine in engines:
            engine.set(step_seconds=STEP_S)
        crowd.finish()
    assert sum(engine.state()["requests"] for engine in engines) == 2
    check_undisturbed(crowd.clients, server)


# Change


@pytest.mark.faults
@pytest.mark.parametrize("other", [{"shift": 1}, *faults_only({"name": "another"})])
def test_an_engine_with_another_model_under_the_same_url_gets_no_call(
    start_server: StartServer, engines: Engines, other: dict[str, object]
) -> None:
    server = start_server(**settings_of(engines))
    replaced, kept = engines
    with Crowd(lambda: server) as crowd:
        begin(crowd, random.Random(7))
        replaced.restart(**{name: value for name, value in other.items() if name == "name"})
        replaced.set(**other)
        probes = replaced.state()["probes"]
        eventually(lambda: replaced.state()["probes"] > probes + 1, within=PATIENCE_S)
        before = replaced.state()["requests"]
        begin(crowd, random.Random(8))
        crowd.finish()
        assert replaced.state()["requests"] == before
    check_undisturbed(crowd.clients, server)
    assert kept.state()["finished"] > 0
    replaced.restart(name="holdfast-demo")
    eventually(lambda: is_used(server, replaced), within=PATIENCE_S)


def is_used(server: ServerProcess, engine: EngineServerProcess) -> bool:
    before = engine.state()["requests"]
    for number in range(6):
        answer_of(server, greedy(random.Random(number + monotonic()), max_output_tokens=2))
    return bool(engine.state()["requests"] > before)


@pytest.mark.faults
def test_engines_are_added_and_removed_by_a_file(
    start_server: StartServer, engines: Engines, tmp_path: Path, tally: Tally
) -> None:
    urls, (first, second) = tmp_path / "engines", engines
    urls.write_text(f"{first.url}\n")
    server = start_server(**settings_of(engines, engine_url=f"file:{urls}"))
    with Crowd(lambda: server) as crowd:
        begin(crowd, random.Random(9))
        assert second.state()["requests"] == 0
        urls.write_text(f"{first.url}\n{second.url} # the new one\n")
        eventually(lambda: is_used(server, second), within=PATIENCE_S)
        urls.write_text("nonsense\n")
        begin(crowd, random.Random(10))
        urls.write_text(f"{second.url}\n")
        eventually(lambda: not is_used(server, first), within=PATIENCE_S)
        crowd.finish()
        assert first.state()["disconnected"] == 0
    tally["F20", "tokens compared while engines came and went"] += check_undisturbed(crowd.clients, server)


# Other weights


def test_an_engine_that_comes_back_with_other_weights_continues_no_response(
    start_server: StartServer, engines: Engines, tally: Tally
) -> None:
    for engine in engines:
        engine.set(length=5000)
    server = start_server(**settings_of(engines, engine_outage_seconds=1))
    body = greedy(random.Random(3), background=True)
    waiting: str = HTTP.post(f"{server.api}/responses", json=body).json()["id"]
    eventually(lambda: busiest(engines).state()["tokens"] > 20, within=PATIENCE_S)
    with Crowd(lambda: server) as crowd:
        client = Attached(greedy(random.Random(4)))
        crowd.start(client)
        eventually(lambda: b"output_text.delta" in client.received, within=PATIENCE_S)
        for engine in engines:
            engine.kill()
        for engine in engines:
            engine.restart(root="/other")
        crowd.finish()
    assert check_whole(client, server)["status"] == "failed"
    assert retrieve(server, waiting)["status"] in ("queued", "in_progress")
    sentence = "is of /other, and that of the other engines of /model"
    eventually(lambda: sentence in server.said(), within=PATIENCE_S)
    server.restart()  # which takes the engines as they are
    eventually(lambda: retrieve(server, waiting)["status"] == "failed", within=PATIENCE_S)
    assert retrieve(server, waiting)["error"]["message"] == CHANGED
    assert sum(engine.state()["requests"] for engine in engines) == 0
    tally["F20", "responses that engines with other weights did not continue"] += 2


def test_a_replica_whose_engine_has_other_weights_continues_no_response(
    start_server: StartServer, engines: Engines, tally: Tally
) -> None:
    for engine in engines:
        engine.set(length=5000)
    first = start_server(**settings_of(engines))
    body = greedy(random.Random(4), background=True)
    made = [HTTP.post(f"{first.api}/responses", json=body).json()["id"] for _ in range(4)]
    eventually(lambda: sum(len(engine.running) for engine in engines) == len(made), within=PATIENCE_S)
    eventually(lambda: all(e.state()["tokens"] > 80 for e in engines if e.running), within=PATIENCE_S)
    first.kill()
    for engine in engines:
        engine.restart(root="/other")
    second = start_server(**settings_of(engines))
    eventually(lambda: all(retrieve(second, one)["status"] == "failed" for one in made), within=PATIENCE_S)
    assert {retrieve(second, one)["error"]["message"] for one in made} == {CHANGED}
    assert sum(engine.state()["requests"] for engine in engines) == 0
    tally["F20", "responses that engines with other weights did not continue"] += len(made)


# Replicas


@pytest.mark.faults
@pytest.mark.parametrize("network", ["whole", "cut"])
def test_calls_of_a_killed_replica_end_at_the_engine_soon_after_its_responses_are_adopted(
    start_server: StartServer, engines: Engines, network: str, tally: Tally
) -> None:
    for engine in engines:
        engine.set(length=600)
    first = start_server(**settings_of(engines))
    second = start_server(**settings_of(engines))
    body = greedy(random.Random(11), background=True)
    made = [HTTP.post(f"{first.api}/responses", json=body).json()["id"] for _ in range(4)]
    eventually(lambda: sum(len(engine.running) for engine in engines) == len(made), within=PATIENCE_S)
    eventually(lambda: all(engine.state()["tokens"] > 20 for engine in engines if engine.running), within=9)
    if network == "cut":
        for engine in engines:
            engine.strand()
    first.kill()
    eventually(lambda: sum(e.state()["requests"] for e in engines) > len(made), within=PATIENCE_S)
    adopted = monotonic()
    eventually(lambda: sum(former_calls_ended(e) for e in engines) == len(made), within=ABORT_S)
    slowest = "ms until a dead replica's calls had ended at the engine, at most"
    tally["F20", slowest] = max(tally["F20", slowest], round(1000 * (monotonic() - adopted)))
    eventually(lambda: all(retrieve(second, one)["status"] == "completed" for one in made), within=PATIENCE_S)
    texts = {output_text(retrieve(second, response_id)) for response_id in made}
    assert texts == set(uncut(second, [{**body, "background": False}]))


def former_calls_ended(engine: EngineServerProcess) -> int:
    return sum(call["how"] in ("aborted", "disconnected") for call in engine.state()["ended"])
