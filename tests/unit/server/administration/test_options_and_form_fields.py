from typing import Any

import pytest
from msgspec import Struct

from server.administration.options_and_form_fields import fields_of, read_request, with_request
from server.caller import Limits
from server.errors import InvalidRequest
from server.protocol.administration.requests import CreateKey, CreateTenant, SetPrice, UpdateKey, UpdateTenant
from server.protocol.webhook_objects import CreateTenantEndpoint, UpdateEndpoint
from server.store.administration.stored_keys import KeyProperties

REQUESTS = (CreateKey, CreateTenant, SetPrice, CreateTenantEndpoint, UpdateEndpoint)


@pytest.mark.parametrize("request_type", REQUESTS)
def test_every_field_of_a_request_says_what_it_is_for(request_type: type[Struct]) -> None:
    assert fields_of(request_type).keys() == set(request_type.__struct_fields__)


@pytest.mark.parametrize(
    ("request_type", "values", "sentence"),
    [
        (UpdateKey, {"requests_per_minute": 0}, "requests_per_minute is from 1 to 2147483647."),
        (UpdateKey, {"models": []}, "models is 1 to 256 names."),
        (UpdateKey, {"scopes": ["fly"]}, "scopes are one or more of admin, metadata"),
        (UpdateKey, {"budget_cost": "1e9"}, "budget_cost is from 0 to 999999999999999, with at most 12"),
        (UpdateKey, {"name": "x" * 257}, "name has 0 to 256 characters."),
        (UpdateTenant, {"retention_days": 99999}, "retention_days is from 0 to 36500."),
        (CreateTenant, {"id": "No!"}, "A tenant's name is 1 to 63 of"),
        (SetPrice, {"model": "m"}, "input is from 0 to"),
    ],
)
def test_what_a_field_cannot_be_is_refused_in_its_words(
    request_type: type[Struct], values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_request(values, request_type)
    assert str(refused.value).startswith(sentence)


def test_only_what_is_given_is_changed() -> None:
    before = KeyProperties(name="n", limits=Limits(requests_per_minute=1, budget_tokens=2))
    assert with_request(before, UpdateKey()) == before
    change = UpdateKey(requests_per_minute=None, tokens_per_minute=9, budget_period="day", models=["a"])
    limits = Limits(tokens_per_minute=9, budget_tokens=2, budget_period="day")
    assert with_request(before, change) == KeyProperties(name="n", limits=limits, models=frozenset({"a"}))


@pytest.mark.parametrize("change", [UpdateKey(name="a\nb"), UpdateKey(models=["a", "b\x1b"])])
def test_what_cannot_be_printed_is_refused(change: UpdateKey) -> None:
    with pytest.raises(InvalidRequest, match="printable"):
        with_request(KeyProperties(), change)
