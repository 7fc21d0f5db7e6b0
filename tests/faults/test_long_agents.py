"""F50: agents of 200 tool calls in contexts of 8k tokens, with a server and a Postgres that die meanwhile."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from server.hosted_tools.tool_loop import STOPPED
from tests.acceptance.test_code_runner import tool_call
from tests.fix_tally import Tally
from tests.support.attached import HTTP, Body, retrieve
from tests.support.eventually import eventually
from tests.support.fake_mcp import running_fakes
from tests.support.powered_server import PoweredServer
from tests.support.server_process import MODEL
from tests.support.websocket import Refused, WebSocket

pytestmark = pytest.mark.faults

STEPS = 200
DEATHS = 10
PATIENCE_S = 60.0
WORDS = "so it was, and so it stayed, and " * 60
"""Of each result: all 200 are many contexts."""
TASK = "Walk to the end."
NUMBERS = range(256)
STEP: Body = {
    "type": "function",
    "name": "step",
    "parameters": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": NUMBERS[0], "maximum": NUMBERS[-1]}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "strict": True,
}
STRICT: dict[str, object] = {"durability": "strict"}
SETTINGS = {**STRICT, "scripted_step_seconds": 0.001, "scripted_context_length": 8192}
MODEL_SETTINGS = {**STRICT, "engine": "model", "torch_threads": 2, "dtype": "float32"}
COMPACTION: Body = {"context_management": [{"type": "compaction", "compact_threshold": 3_000}]}
SUMMARY = "about to be forgotten"
"""Words of the prompt by which the model writes a summary."""
LIMITS: dict[str, Body] = {"truncated": {}, "compacted": COMPACTION}


def result(number: int) -> str:
    return f"result {number:03}: {WORDS}"


def answers(name: str) -> str:
    """Calls the tool with the number after that of the newest result, and ends after the last one."""
    said = [tool_call(name, n=number) for number in range(STEPS)]
    pairs = [(f"result {number:03}:", call) for number, call in enumerate([*said[1:], "I am there."])]
    return json.dumps([(SUMMARY, "So far, so good."), *reversed(pairs), (TASK, said[0])])


class Deaths:
    """Kills the server, or cuts the power of server and Postgres, some milliseconds after chosen steps."""

    def __init__(self, powered: PoweredServer, steps: int = STEPS, deaths: int = DEATHS) -> None:
        self._powered = powered
        self._random = random.Random(steps)
        self._at = sorted(self._random.sample(range(steps), deaths))
        self._thread: Thread | None = None
        self.count = 0

    def reached(self, step: int) -> None:
        if self._at and step >= self._at[0]:
            del self._at[0]
            self.finish()
            self._thread = Thread(target=self._die, args=(self._random.uniform(0, 0.05), len(self._at) % 2))
            self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _die(self, delay: float, kind: int) -> None:
        Event().wait(delay)
        if kind:
            self._powered.cut()
            self._powered.start()
        else:
            self._powered.process.restart()
        self.count += 1


class Agent:
    """Runs the calls of function `step`, each of which must be the next one."""

    steps, deaths = STEPS, DEATHS

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()
        self.step = 0

    def begin(self) -> Body:
        """What the first request has beside what all have."""
        return {"input": TASK}

    def answer(self, response: Body) -> Body | None:
        """What the next request changes; None if the model has ended."""
        outputs = self.run(response)
        return {"input": outputs} if outputs else None

    def run(self, response: Body) -> list[Body]:
        """The outputs of its calls."""
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        for call in calls:
            self.check(json.loads(call["arguments"]))
            self.executed[call["call_id"]] += 1
            self.step += 1
        return [
            {"type": "function_call_output", "call_id": call["call_id"], "output": result(self.step - 1)}
            for call in calls
        ]

    def check(self, arguments: Body) -> None:
        assert arguments == {"n": self.step}


LAST: Body = {"tool_choice": "none", "structured_outputs": {"choice": ["I am there."]}}
"""What ends a model that says more of itself."""


class AgentOfAModel(Agent):
    """Has the demo model call with each result: of itself it ends, and its numbers are its own."""

    def begin(self) -> Body:
        return {"input": TASK, "tool_choice": {"type": "function", "name": "step"}, "max_output_tokens": 256}

    def answer(self, response: Body) -> Body | None:
        changes = super().answer(response)
        return {**changes, **LAST} if changes and self.step == self.steps else changes

    def check(self, arguments: Body) -> None:
        assert arguments["n"] in NUMBERS


Ask = Callable[[Body], Body | None]
"""Sends a request; None if it is to be sent again, as nothing of its answer was seen."""
Way = Callable[[PoweredServer], AbstractContextManager[Ask]]


def until_answered(ask: Ask, body: Body) -> Body:
    return eventually(partial(ask, body), within=PATIENCE_S) or {}


def walk(powered: PoweredServer, ask: Ask, deaths: Deaths, limits: Body, agent: Agent) -> list[Body]:
    """The chain's responses, as they are stored."""
    chain = []
    body: Body = {"model": MODEL, "tools": [STEP], "truncation": "auto", **agent.begin(), **limits}
    while True:
        deaths.reached(agent.step)
        response = until_answered(ask, body)
        chain.append(response["id"])
        if (changes := agent.answer(response)) is None:
            break
        body = {**body, "previous_response_id": response["id"], **changes}
    deaths.finish()
    assert agent.step == agent.steps
    assert set(agent.executed.values()) == {1}
    assert len(chain) == agent.steps + 1
    assert deaths.count == agent.deaths
    stored = [await_stored(powered, response) for response in chain]
    assert [response["previous_response_id"] for response in stored] == [None, *chain[:-1]]
    return stored


def compactions(responses: Sequence[Body]) -> int:
    return sum(item["type"] == "compaction" for response in responses for item in response["output"])


def await_stored(powered: PoweredServer, response_id: str) -> Body:
    response = eventually(partial(whole, powered, response_id), within=PATIENCE_S)
    return response or {}


def whole(powered: PoweredServer, response_id: str) -> Body | None:
    try:
        response = retrieve(powered.process, response_id)
    except httpx.TransportError:
        return None
    assert response["status"] == "completed"
    return response


@contextmanager
def over_http(powered: PoweredServer) -> Iterator[Ask]:
    """With an idempotency key, anew only if the response has failed with its server."""
    failures = 0

    def ask(body: Body) -> Body | None:
        nonlocal failures
        key = f"{body.get('previous_response_id')}-{failures}"
        try:
            answer = HTTP.post(
                f"{powered.process.api}/responses", json=body, headers={"Idempotency-Key": key}, timeout=30
            )
        except httpx.TransportError:
            return None
        assert answer.status_code in (200, 409, 429, 500, 503), answer.text
        response: Body = answer.json()
        if answer.status_code == 200 and response["status"] != "completed":
            assert response["status"] == "failed", response
            failures += 1
        return response if answer.status_code == 200 and response["status"] == "completed" else None

    yield ask


@contextmanager
def over_websocket(powered: PoweredServer) -> Iterator[Ask]:
    """On one connection as long as it lasts, as Codex does."""
    connections: list[WebSocket] = []

    def ask(body: Body) -> Body | None:
        try:
            if not connections:
                connections.append(WebSocket(powered.process.url))
            last = connections[0].turn(body)[-1]
        except (OSError, Refused, AssertionError):
            for connection in connections:
                connection.close()
            connections.clear()
            return None
        assert last["type"] in ("response.completed", "response.failed", "error"), last
        if last["type"] == "error":
            assert last["status"] >= 409, last
        return last["response"] if last["type"] == "response.completed" else None

    try:
        yield ask
    finally:
        for connection in connections:
            connection.close()


ENGINES: dict[str, tuple[type[Agent], dict[str, object]]] = {
    "scripted": (Agent, {**SETTINGS, "scripted_answers": answers("step")}),
    "model": (AgentOfAModel, MODEL_SETTINGS),
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("way", [over_http, over_websocket])
@pytest.mark.parametrize(("kind", "settings"), ENGINES.values(), ids=ENGINES)
def test_an_agent_that_runs_its_tools_makes_every_call_once(
    made_dir: Path, kind: type[Agent], settings: dict[str, object], way: Way, limits: Body, tally: Tally
) -> None:
    with PoweredServer(made_dir, **settings) as powered:
        agent = kind()
        deaths = Deaths(powered, agent.steps, agent.deaths)
        try:
            with way(powered) as ask:
                responses = walk(powered, ask, deaths, limits, agent)
        finally:
            deaths.finish()
        assert bool(compactions(responses)) == bool(limits)
        tally["F50", "compactions of an agent's context"] += compactions(responses)
        tally["F50", "deaths of a server under an agent"] += deaths.count


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_a_server_that_runs_the_tools_makes_every_call_once(
    made_dir: Path, limits: Body, tally: Tally
) -> None:
    with running_fakes(1) as (shop,):
        given: list[int] = []
        tool = {"type": "mcp", "server_label": "path", "require_approval": "never"}
        settings: dict[str, Any] = {
            **SETTINGS,
            "scripted_answers": hosted_answers(),
            "max_hosted_calls": STEPS,
        }
        with PoweredServer(made_dir, **settings, tool_server=f"path={shop.url}") as powered:
            deaths = Deaths(powered)

            def arrive() -> None:
                given.append(int(shop.calls[-1]["arguments"]["q"]))
                shop.text = result(given[-1])
                deaths.reached(given[-1])

            shop.on_call = arrive
            body = {"model": MODEL, "tools": [tool], "truncation": "auto", "input": TASK, "background": True}
            response = HTTP.post(f"{powered.process.api}/responses", json={**body, **limits}).json()["id"]
            final = eventually(partial(ended, powered, response), within=PATIENCE_S * DEATHS) or {}
            deaths.finish()
            assert final["status"] == "completed", final["error"]
            assert given == list(range(STEPS))
            calls = [item for item in final["output"] if item["type"] == "mcp_call"]
            assert [json.loads(call["arguments"])["q"] for call in calls] == [f"{n:03}" for n in range(STEPS)]
            assert bool(compactions([final])) == bool(limits)
            assert limits or final["dropped_items"] > STEPS / 2
            tally["F50", "compactions within a response"] += compactions([final])
            tally["F50", "deaths of a server in a response of 200 calls"] += deaths.count
            tally["F50", "calls whose result nobody knows"] += sum(STOPPED in str(call) for call in calls)


def hosted_answers() -> str:
    """The same where the result of a call may not be known: the call itself is in the prompt."""
    said = [tool_call("path__find", q=f"{number:03}") for number in range(STEPS)]
    pairs = [(f'"{number:03}"', call) for number, call in enumerate([*said[1:], "I am there."])]
    return json.dumps([(SUMMARY, "So far, so good."), *reversed(pairs), (TASK, said[0])])


def ended(powered: PoweredServer, response_id: str) -> Body | None:
    try:
        response = retrieve(powered.process, response_id)
    except httpx.TransportError:
        return None
    return None if response["status"] in ("queued", "in_progress") else response
