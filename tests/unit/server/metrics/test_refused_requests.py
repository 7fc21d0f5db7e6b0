from collections.abc import Iterator

import pytest

from server.errors import InvalidRequest, NotAuthenticated, TooManyRequests
from server.logs.context import CURRENT, RequestContext
from server.metrics.families import OTHER
from server.metrics.refused_requests import MAX_KINDS, RefusedRequests
from server.store.administration.refused_request_counts import RefusedRequest


@pytest.fixture
def context() -> Iterator[RequestContext]:
    context = RequestContext("req_1", route="/v1/responses")
    token = CURRENT.set(context)
    yield context
    CURRENT.reset(token)


def test_refusals_are_counted_by_tenant_route_status_and_code(context: RequestContext) -> None:
    refused = RefusedRequests()
    refused.count(NotAuthenticated("No key."))
    context.tenant = "acme"
    for _ in range(2):
        refused.count(TooManyRequests("Later."))
    refused.count(InvalidRequest("No."))
    assert refused.take() == {
        RefusedRequest("", "/v1/responses", 401, "invalid_api_key"): 1,
        RefusedRequest("acme", "/v1/responses", 429, "rate_limit_exceeded"): 2,
        RefusedRequest("acme", "/v1/responses", 400, ""): 1,
    }
    assert refused.take() == {}


def test_refusals_are_counted_by_key_and_those_of_access_tokens_by_none(context: RequestContext) -> None:
    refused = RefusedRequests()
    context.tenant = "acme"
    for key_id in ("k1", "k2", "token:ada"):
        context.key_id = key_id
        refused.count(InvalidRequest("No."))
    assert {refusal.key_id for refusal in refused.take()} == {"k1", "k2", ""}


def test_counts_that_could_not_be_stored_are_added_to_later_ones(context: RequestContext) -> None:
    refused = RefusedRequests()
    refused.count(NotAuthenticated("No key."))
    taken = refused.take()
    refused.count(NotAuthenticated("No key."))
    refused.add(taken)
    assert refused.take() == {RefusedRequest("", "/v1/responses", 401, "invalid_api_key"): 2}


def test_a_flood_of_tenants_is_counted_together_from_a_bound_on(context: RequestContext) -> None:
    refused = RefusedRequests()
    for number in range(MAX_KINDS + 50):
        context.tenant = f"tenant-{number}"
        refused.count(InvalidRequest("No."))
    taken = refused.take()
    assert len(taken) == MAX_KINDS + 1
    assert taken[RefusedRequest("", "", 400, OTHER)] == 50
