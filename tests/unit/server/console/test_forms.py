import pytest

from server.console import forms
from server.errors import InvalidRequest
from server.protocol.administration.requests import CreateKey, SetPrice, UpdateKey, UpdateTenant
from server.protocol.error_object import DecodeFailure


def test_an_empty_field_is_no_limit() -> None:
    values = forms.tenant_values({"max_queued": "", "contact": " Ana ", "retention_days": "0"})
    body = forms.read_body(values, UpdateTenant)
    assert (body.max_queued, body.contact, body.retention_days) == (None, "Ana", 0)
    assert (body.requests_per_minute, body.budget_cost, body.budget_period) == (None, None, "month")


def test_a_key_has_the_checked_scopes_and_a_name_a_line() -> None:
    form = {"scope_read": "1", "models": "a\r\n\n b \n", "tools": "", "ends_streams": "1"}
    body = forms.read_body({"tenant": "acme", **forms.key_values(form)}, CreateKey)
    assert (body.scopes, body.models, body.tools, body.ends_streams) == (["read"], ["a", "b"], None, True)


def test_a_key_without_scopes_is_refused() -> None:
    with pytest.raises(DecodeFailure) as refused:
        forms.read_body({"tenant": "acme", **forms.key_values({})}, CreateKey)
    assert refused.value.param == "scopes"


def test_a_time_is_in_utc_unless_it_says_otherwise() -> None:
    assert forms.unix_seconds({"at": "2026-01-01T00:00"}, "at") == 1767225600
    assert forms.unix_seconds({"at": "2026-01-01T01:00+01:00"}, "at") == 1767225600
    assert forms.unix_seconds({"at": " "}, "at") is None


@pytest.mark.parametrize("text", ["soon", "2026-13-01", "0001-01-01T00:00+23:59"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="at is a time"):
        forms.unix_seconds({"at": text}, "at")


@pytest.mark.parametrize("text", ["1.5", "1e3", "٣", "--1", "1" * 20, "0x10", "1_000"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="n is a whole number"):
        forms.whole_number({"n": text}, "n")


def test_a_price_without_cached_input_has_that_of_input() -> None:
    body = forms.read_body(forms.price_values({"model": "m", "input": "1", "output": "2"}), SetPrice)
    assert body.cached_input is None


def test_the_forms_have_every_field_of_the_admin_api() -> None:
    assert forms.tenant_values({}).keys() == set(UpdateTenant.__struct_fields__)
    assert forms.key_values({}).keys() == set(UpdateKey.__struct_fields__)
