import json
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from server import errors
from server.errors import ApiError, InvalidRequest
from server.http.json_responses import on_error, to_api_error


def leaves(kind: type[ApiError]) -> Iterator[type[ApiError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from leaves(child)


EXAMPLES: list[tuple[Exception, int, str | None]] = [
    (errors.InvalidRequest("No."), 400, None),
    (errors.ConversationLocked(), 400, "conversation_locked"),
    (errors.StreamForked(57), 400, "stream_forked"),
    (errors.EventNotStored(57, 3, "starting_after"), 400, "event_not_stored"),
    (errors.UnknownModel("x", ["y"]), 404, "model_not_found"),
    (errors.NotAuthenticated("No."), 401, "invalid_api_key"),
    (errors.MissingScope("write"), 403, "insufficient_scope"),
    (errors.ModelNotAllowed("x"), 403, "model_not_found"),
    (errors.ToolNotAllowed("code_interpreter", "tools[0]"), 403, "tool_not_allowed"),
    (errors.WrongOrigin(), 403, "wrong_origin"),
    (errors.WrongHost("evil.example"), 403, "wrong_host"),
    (errors.UnsupportedMediaType("text/plain"), 415, "unsupported_media_type"),
    (errors.UnsupportedEncoding("compress"), 415, "unsupported_media_type"),
    (errors.NotFound("No."), 404, "not_found"),
    (errors.MethodNotAllowed("No."), 405, "method_not_allowed"),
    (errors.BodyTooSlow(30), 408, "request_timeout"),
    (errors.Conflict("No."), 409, "conflict"),
    (errors.BodyTooLarge(10), 413, "request_too_large"),
    (errors.UpgradeRequired(), 426, "upgrade_required"),
    (errors.TooManyRequests("No."), 429, "rate_limit_exceeded"),
    (errors.RateLimited("tenant a", "requests", 5, 5, 1, 7.2), 429, "rate_limit_exceeded"),
    (errors.RequestTooLarge("tenant a", "tokens", 5, 9), 429, "rate_limit_exceeded"),
    (errors.BudgetExceeded("No."), 429, "insufficient_quota"),
    (errors.Overloaded("No."), 503, "overloaded"),
    (errors.WorkerReplica(), 503, "worker_replica"),
    (errors.SchemaBehind(), 503, "schema_behind"),
    (errors.DatabaseAwaited(), 503, "overloaded"),
    (errors.ToolServerDown("code_interpreter", "python", "gone."), 503, "tool_server_unavailable"),
    (errors.StorageFull(), 503, "storage_full"),
    (errors.StorageQuotaExceeded(1000), 429, "storage_quota_exceeded"),
    (OperationalError("insert secret", {}, psycopg.errors.DiskFull("10.0.0.7")), 503, "storage_full"),
    (errors.QueryTooSlow(), 504, "query_too_slow"),
    (
        OperationalError("select secret", {}, psycopg.errors.QueryCanceled("10.0.0.7")),
        504,
        "query_too_slow",
    ),
    (errors.ModelFailed("No."), 500, "server_error"),
    (errors.InternalError(), 500, "internal_error"),
    (InvalidRequest("No.", "input[0]", "invalid_type"), 400, "invalid_type"),
    (OperationalError("select secret", {}, Exception("10.0.0.7")), 503, "overloaded"),
    (PoolTimeout("secret"), 503, "overloaded"),
    (HTTPException(404), 404, "not_found"),
    (HTTPException(405), 405, "method_not_allowed"),
    (HTTPException(418), 500, "internal_error"),
    (RuntimeError("secret"), 500, "internal_error"),
    (RecursionError("secret"), 500, "internal_error"),
]


def make_request() -> Request:
    app = Starlette(routes=[Route("/", lambda _request: None, methods=["POST"])])
    about = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "app": app}
    return Request(about)


def test_every_error_of_the_tree_has_an_example_here() -> None:
    assert set(leaves(ApiError)) - {ApiError} <= {type(error) for error, _, _ in EXAMPLES}


@pytest.mark.parametrize(("error", "status", "code"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_whatever_goes_wrong_is_an_error_object(error: Exception, status: int, code: str | None) -> None:
    answer = on_error(make_request(), error)
    told = json.loads(bytes(answer.body))["error"]
    assert answer.status_code == status
    assert set(told) == {"message", "type", "param", "code"}
    assert told["code"] == code
    kinds = {429: getattr(error, "kind", None) or "rate_limit_error"}
    assert told["type"] == kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    assert told["message"].endswith(".")
    assert "secret" not in told["message"]
    assert "10.0.0.7" not in told["message"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(("error", "status", "code"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_only_what_may_pass_is_worth_another_try(error: Exception, status: int, code: str | None) -> None:
    headers = on_error(make_request(), error).headers
    never = isinstance(error, errors.RequestTooLarge | errors.BudgetExceeded)
    may_pass = (status in (429, 503) and not never) or code == "conversation_locked"
    assert ("retry-after" in headers) == may_pass
    assert headers["x-should-retry"] == ("true" if may_pass else "false")


def test_a_refused_rate_says_when_to_try_again() -> None:
    answer = on_error(make_request(), errors.RateLimited("tenant a", "tokens", 5, 5, 1, 7.2))
    assert answer.headers["retry-after"] == "8"
    longest = on_error(make_request(), errors.RateLimited("tenant a", "tokens", 5, 5, 1, 61.5))
    assert longest.headers["retry-after"] == "60"
    told = json.loads(bytes(answer.body))["error"]
    assert told["type"] == "tokens"
    assert "Limit 5, Used 5, Requested 1. Please try again in 8s." in told["message"]


def test_only_a_mistake_of_ours_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    on_error(make_request(), errors.InvalidRequest("No."))
    assert caplog.records == []
    on_error(make_request(), RuntimeError("the cause"))
    assert "the cause" in caplog.text


def test_the_request_keeps_its_id() -> None:
    request = make_request()
    request.state.request_id = "req_1"
    assert on_error(request, RuntimeError()).headers["x-request-id"] == "req_1"


def test_a_caller_without_a_key_is_told_how_to_send_one() -> None:
    assert on_error(make_request(), errors.NotAuthenticated("No.")).headers["www-authenticate"] == "Bearer"


def test_a_decode_failure_keeps_its_path() -> None:
    told = to_api_error(InvalidRequest("No.", "input[0]", "invalid_type"))
    assert (told.param, str(told)) == ("input[0]", "No.")


def test_a_model_of_any_length_is_said_back_in_a_short_sentence() -> None:
    assert len(str(errors.UnknownModel("x" * 100_000, ["served"]))) < 300
