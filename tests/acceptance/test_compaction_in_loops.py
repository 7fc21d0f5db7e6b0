"""Compaction between the turns of a response whose tools the server runs, and kills around it."""

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.acceptance.sdk_types import check_event
from tests.acceptance.test_code_runner import tool_call
from tests.fix_server import SCRIPTED, StartServer
from tests.support.eventually import eventually
from tests.support.fake_mcp import FakeMcp, running_fakes
from tests.support.invariants import check
from tests.support.rounds import faults_only
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import Frame, create, join, parse, replay

Body = dict[str, Any]
SAID = "so it is, and so it was, and so it will be. "
THOUGHT = f"<think>{SAID * 40}</think>"
SUMMED = "Two pages tell of a cat."
STEPS = 12
WALK = [tool_call("shop__add", step=step) for step in range(STEPS)]
STAGES = 6
DRIVE = [tool_call("shop__add", stage=stage) for stage in range(STAGES)]
ANSWERS = [
    ("Now write the summary.", SUMMED),
    *reversed([(f"At step {step:02}.", call) for step, call in enumerate([*WALK[1:], "I am there."])]),
    ("Walk.", WALK[0]),
    *reversed([(f"At stage {stage}.", call) for stage, call in enumerate([*DRIVE[1:], "I arrived."])]),
    ("Drive.", DRIVE[0]),
    ("So which cat?", "Ginger, as I said."),
    (SUMMED, "It is ginger."),
    ("The cat is ginger.", tool_call("shop__add", page=3)),
    ("The cat is small.", tool_call("shop__add", page=2)),
    ("Read the pages.", "I look at page one.\n" + tool_call("shop__add", page=1)),
    ("output of the call: 2", "It is 2."),
    ("Reckon.", THOUGHT + tool_call("shop__find", q="2")),
]
RESULTS = {
    '{"page": 1}': f"The cat is small. {SAID * 30}",
    '{"page": 2}': f"The cat is ginger. {SAID * 30}",
    '{"q": "2"}': "2",
    **{json.dumps({"stage": stage}): f"At stage {stage}. {SAID * 13}" for stage in range(STAGES)},
    **{json.dumps({"step": step}): f"At step {step:02}. {SAID * 4}" for step in range(STEPS)},
}
TOOL = {"type": "mcp", "server_label": "shop", "require_approval": "never"}
LOOP: Body = {
    "model": MODEL,
    "input": "Read the pages.",
    "tools": [TOOL],
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
}
KINDS = ["mcp_list_tools", "message", "mcp_call", "mcp_call", "compaction", "message"]


@pytest.fixture(scope="module")
def shop() -> Iterator[FakeMcp]:
    with running_fakes(1) as (fake,):

        def answer() -> None:
            fake.text = RESULTS[json.dumps(fake.calls[-1]["arguments"])]

        fake.on_call = answer
        yield fake


@pytest.fixture(scope="module")
def settings(shop: FakeMcp) -> dict[str, object]:
    return {"scripted_answers": json.dumps(ANSWERS), "tool_server": f"shop={shop.url}"}


@pytest.fixture(scope="module")
def server(module_database: str, settings: dict[str, object]) -> Iterator[ServerProcess]:
    process = ServerProcess(module_database, settings={**SCRIPTED, **settings})
    try:
        process.start()
        yield process
    finally:
        process.stop()
    check(module_database)


def post(server: ServerProcess, body: Body) -> Body:
    answer = httpx.post(f"{server.api}/responses", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    told: Body = answer.json()
    return told


def kinds(told: Body) -> list[str]:
    return [item["type"] for item in told["output"]]


def prompt_after(server: ServerProcess, told: Body) -> str:
    """What the model reads of a response in the next one."""
    body = {"model": MODEL, "input": "So which cat?", "previous_response_id": told["id"]}
    prompt: str = post(server, {**body, "enable_response_messages": True})["input_messages"][-1]["message"]
    return prompt


def stream(server: ServerProcess, body: Body) -> list[Frame]:
    with create(server.url, body) as sent:
        return parse(sent.read())


def check_stream(frames: list[Frame]) -> None:
    """Each event is the SDK's, none is missing, and every item is told once, as the response has it."""
    for frame in frames:
        check_event(frame.raw.decode().partition("data: ")[2])
    assert [frame.number for frame in frames] == list(range(len(frames)))
    told = [frame.json for frame in frames if frame.event == "response.output_item.done"]
    assert [(event["output_index"], event["item"]) for event in told] == list(
        enumerate(frames[-1].json["response"]["output"])
    )


def test_loop_that_outgrows_the_threshold_goes_on_from_a_compaction_in_its_midst(
    server: ServerProcess,
) -> None:
    told = post(server, LOOP)
    assert (told["status"], kinds(told)) == ("completed", KINDS)
    assert told["output"][-1]["content"][0]["text"] == "It is ginger."
    prompt = prompt_after(server, told)
    assert [text for text in ("Read the pages.", SUMMED, "It is ginger.") if text not in prompt] == []
    assert SAID * 2 not in prompt


def test_loop_below_the_threshold_is_not_compacted(server: ServerProcess) -> None:
    high = {"context_management": [{"type": "compaction", "compact_threshold": 3900}]}
    told = post(server, {**LOOP, **high, "max_tool_calls": 2})
    assert "compaction" not in kinds(told)


def test_short_transcript_is_its_own_summary_and_costs_no_turn(server: ServerProcess) -> None:
    told = post(server, {**LOOP, "input": "Reckon."})
    assert kinds(told) == ["mcp_list_tools", "reasoning", "mcp_call", "compaction", "message"]
    assert told["output"][-1]["content"][0]["text"] == "It is 2."
    prompt = prompt_after(server, told)
    assert "assistant calls find" in prompt
    assert [text for text in (SUMMED, SAID) if text in prompt] == []


def test_long_loop_is_compacted_again_and_again(server: ServerProcess, shop: FakeMcp) -> None:
    made = len(shop.calls)
    told = post(server, {**LOOP, "input": "Walk."})
    assert (told["status"], told["output"][-1]["content"][0]["text"]) == ("completed", "I am there.")
    assert [call["arguments"] for call in shop.calls[made:]] == [{"step": step} for step in range(STEPS)]
    places = [place for place, kind in enumerate(kinds(told)) if kind == "compaction"]
    assert len(places) > 1
    assert min(after - before for before, after in itertools.pairwise(places)) > 2


def test_newest_result_stays_although_few_results_fit_beside_a_summary(
    server: ServerProcess, shop: FakeMcp
) -> None:
    before = len(shop.calls)
    told = post(server, {**LOOP, "input": "Drive."})
    assert told["output"][-1]["content"][0]["text"] == "I arrived."
    assert kinds(told).count("compaction") >= 2
    assert [call["arguments"]["stage"] for call in shop.calls[before:]] == list(range(STAGES))


def test_truncation_may_be_asked_for_beside_it(server: ServerProcess) -> None:
    assert kinds(post(server, {**LOOP, "truncation": "auto"})) == KINDS


@pytest.mark.parametrize("question", ["Read the pages.", "Reckon."])
def test_stream_tells_the_compaction_in_order_and_again(server: ServerProcess, question: str) -> None:
    frames = stream(server, {**LOOP, "input": question})
    check_stream(frames)
    events = [frame.event.removeprefix("response.") for frame in frames]
    place = events.index("compaction.compacting")
    assert (events[place - 1], events[place + 1]) == ("output_item.added", "output_item.done")
    response = frames[0].json["response"]["id"]
    for frame in frames[place - 2 : place + 2]:
        with replay(server.url, response, frame.number) as again:
            assert again.read() == join(frames[frame.number + 1 :])


def is_added(frame: Frame) -> bool:
    return frame.event == "response.output_item.added" and frame.json["item"]["type"] == "compaction"


def is_done(frame: Frame, kind: str) -> bool:
    return frame.event == "response.output_item.done" and frame.json["item"]["type"] == kind


def is_last_call_done(frame: Frame) -> bool:
    return is_done(frame, "mcp_call") and frame.json["item"]["output"] in MARKED


MARKED = [RESULTS[name] for name in ('{"page": 2}', '{"q": "2"}', '{"step": 8}')]
MOMENTS: dict[str, Callable[[Frame], bool]] = {
    "before": is_last_call_done,
    "during": is_added,
    "after": partial(is_done, kind="compaction"),
    "answering": lambda frame: frame.event == "response.output_text.delta" and "I" in frame.json["delta"],
}


@pytest.mark.parametrize("question", ["Read the pages.", *faults_only("Walk.", "Reckon.")])
def test_response_goes_on_after_a_kill_around_its_compaction(
    start_server: StartServer, settings: dict[str, object], shop: FakeMcp, question: str
) -> None:
    server = start_server(**settings, scripted_step_seconds=0.003, lease_seconds=2)
    body = {**LOOP, "input": question, "background": True, "seed": 5}

    def ended(response: str) -> Body:
        told: Body = httpx.get(f"{server.api}/responses/{response}").json()
        return told if told["status"] in ("completed", "failed", "incomplete") else {}

    uncut = eventually(partial(ended, post(server, body)["id"]), within=60)
    made = len(shop.calls)
    assert "compaction" in kinds(uncut)
    for name, is_moment in MOMENTS.items():
        cut = post(server, body)["id"]
        with replay(server.url, cut) as reader:
            seen = []
            for frame in reader:
                seen.append(frame)
                if is_moment(frame):
                    break
            server.kill()
        server.start()
        told = eventually(partial(ended, cut), within=60)
        assert told["status"] == "completed", name
        assert kinds(told) == kinds(uncut), name
        assert told["output"][-1]["content"] == uncut["output"][-1]["content"]
        assert told["usage"]["output_tokens"] == uncut["usage"]["output_tokens"]
        assert prompt_after(server, told) == prompt_after(server, uncut)
        with replay(server.url, cut) as again:
            frames = parse(again.read())
        assert frames[: len(seen)] == seen
        check_stream(frames)
    calls = sum(item["type"] == "mcp_call" for item in uncut["output"])
    assert len(shop.calls) - made == calls * len(MOMENTS)
