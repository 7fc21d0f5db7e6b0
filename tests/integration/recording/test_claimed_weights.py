"""Responses that are claimed where other weights are served under the name of their model."""

from dataclasses import replace

import pytest

from engine.request import ModelInfo
from server.recovery.claimer import CHANGED, STOPPED
from tests.integration.recording.claiming import MODEL_INFO, Taking, check_end, taking
from tests.support.builders import accept, say


def weights_in_rows(at: Taking, value: str | None) -> None:
    with at.bench.database.begin() as connection:
        connection.exec_driver_sql("update responses set weights = %s", (value,))


def served_weights(weights: str | None) -> ModelInfo:
    return replace(MODEL_INFO, weights={} if weights is None else {"": weights})


@pytest.mark.parametrize("ended_by", ["request", "death"])
def test_a_response_of_other_weights_ends_and_is_not_spliced(
    database_url: str, caplog: pytest.LogCaptureFixture, ended_by: str
) -> None:
    with taking(database_url, model_info=served_weights("b" * 64)) as at:
        run = at.leave([list(say("half"))], background=ended_by == "request")
        before = at.stream(run)
        weights_in_rows(at, "a" * 64)
        at.claimer.claim_all()
        told = check_end(at.bench, run.facts.id, before, "failed")
        assert told["error"]["message"] == (CHANGED if ended_by == "request" else STOPPED)
        assert told["output"][0]["content"][0]["text"] == "half"
        assert at.engine.requests == []
    said = "begun by weights aaaaaaaaaaaa of model, and bbbbbbbbbbbb are here, so it is not continued"
    assert (said in caplog.text) == (ended_by == "request")


@pytest.mark.parametrize(("stored", "here"), [("a", "a"), (None, "a"), ("a", None), (None, None)])
def test_a_response_goes_on_where_its_weights_are_the_same_or_not_known(
    database_url: str, stored: str | None, here: str | None
) -> None:
    with taking(database_url, model_info=served_weights(here)) as at:
        run = at.leave([list(say("half"))], background=True)
        weights_in_rows(at, stored)
        at.claimer.claim_all()
        assert [request.request_id for request in at.engine.requests] == [run.engine_request_id]
        with at.bench.database.begin() as connection:
            assert connection.exec_driver_sql("select weights from responses").scalar_one() == stored


def test_a_response_without_a_token_begins_on_the_weights_that_are_there(database_url: str) -> None:
    with taking(database_url, model_info=served_weights("b")) as at:
        begun, queued = (
            at.leave([], background=True),
            accept(at.bench.database, at.bench.replica, background=True),
        )
        weights_in_rows(at, "a")
        at.claimer.claim_all()
        claimed = {request.request_id for request in at.engine.requests}
        assert claimed == {begun.engine_request_id, queued.engine_request_id}
        with at.bench.database.begin() as connection:
            assert set(connection.exec_driver_sql("select weights from responses").scalars()) == {"b"}
