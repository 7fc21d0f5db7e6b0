"""What is held to OpenAI's shapes in every test: bodies that are not of them are found."""

import json

import pytest

from tests.support import openai_document
from tests.support.bodies import Bodies, shape_of

DONE = {
    "type": "response.function_call_arguments.done",
    "sequence_number": 3,
    "item_id": "fc_1",
    "output_index": 0,
    "arguments": "{}",
}
DELTA = {
    "type": "response.output_text.delta",
    "sequence_number": 3,
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 0,
    "delta": "Hi",
    "logprobs": [],
}


def sent(
    body: str, *, path: str = "/v1/responses", kind: str = "application/json", status: int = 200
) -> list[str]:
    """The faults of a body that is sent in two pieces."""
    bodies, half = Bodies(), len(body) // 2
    lines = [
        ["1.0", "start", "POST", path, status, kind],
        ["1.0", "body", body[:half], True],
        ["1.0", "body", body[half:], False],
    ]
    return [fault for line in lines for fault in bodies.take(json.dumps(line))]


def stream(*events: object) -> list[str]:
    frames = "".join(f"event: x\ndata: {json.dumps(event)}\n\n" for event in events)
    return sent(frames + ": keep-alive\n\ndata: [DONE]\n\n", kind="text/event-stream; charset=utf-8")


def test_event_that_is_as_openais_has_no_fault() -> None:
    assert stream({**DONE, "name": "look"}, DELTA) == []


@pytest.mark.parametrize(
    "event", [{**DELTA, "delta": 1}, {**DELTA, "sequence_number": "3"}, {**DELTA, "type": "response.made_up"}]
)
def test_event_that_is_not_as_the_sdks_is_found(event: object) -> None:
    assert stream(DELTA, event, DELTA)


@pytest.mark.skipif(not openai_document.is_there(), reason=openai_document.ABSENT)
def test_event_without_a_field_that_only_openais_document_requires_is_found() -> None:
    (fault,) = stream(DONE)
    assert '"name" is a required property' in fault


def test_error_and_answer_that_are_none_are_found() -> None:
    error = {"message": "No.", "type": "invalid_request_error", "param": None, "code": None}
    assert sent(json.dumps({"error": error}), status=400) == []
    assert sent(json.dumps({"error": {"message": "No."}}), status=400)
    assert sent(json.dumps({"id": "resp_1", "object": "response"}))


def test_shape_is_that_of_the_nearest_path() -> None:
    compact, one = shape_of("POST", "/v1/responses/compact"), shape_of("GET", "/v1/responses/resp_1")
    assert compact is not None
    assert one is not None
    assert (compact.schema, one.schema) == ("CompactResource", "Response")
    assert shape_of("GET", "/health") is None
