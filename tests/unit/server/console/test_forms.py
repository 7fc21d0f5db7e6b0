import pytest

from server.console.forms import form_fields, read_form
from server.errors import InvalidRequest
from server.protocol.administration.requests import CreateKey, SetPrice, UpdateKey, UpdateTenant


def test_an_empty_field_is_no_limit() -> None:
    body = read_form({"max_queued": "", "contact": " Ana ", "retention_days": "0"}, UpdateTenant)
    assert (body.max_queued, body.contact, body.retention_days) == (None, "Ana", 0)
    assert (body.requests_per_minute, body.budget_cost) == (None, None)


def test_a_key_has_the_checked_scopes_and_a_name_a_line() -> None:
    form = {"scopes_read": "1", "models": "a\r\n\n b \n", "tools": "", "ends_streams": "1"}
    body = read_form(form, CreateKey, tenant="acme")
    assert (body.scopes, body.models, body.tools, body.ends_streams) == (["read"], ["a", "b"], None, True)


def test_a_key_without_scopes_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="scopes are one or more of") as refused:
        read_form({}, CreateKey, tenant="acme")
    assert refused.value.param == "scopes"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2026-01-01T00:00", 1767225600), ("2026-01-01T01:00+01:00", 1767225600), (" ", None)],
)
def test_a_time_is_in_utc_unless_it_says_otherwise(text: str, seconds: int | None) -> None:
    assert read_form({"scopes_read": "1", "expires_at": text}, UpdateKey).expires_at == seconds


@pytest.mark.parametrize("text", ["soon", "2026-13-01", "0001-01-01T00:00+23:59"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expires_at is a time"):
        read_form({"scopes_read": "1", "expires_at": text}, UpdateKey)


@pytest.mark.parametrize("text", ["1.5", "1e3", "٣", "--1", "1" * 20, "0x10", "1_000"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="max_queued is a whole number"):
        read_form({"max_queued": text}, UpdateTenant)


def test_a_price_without_cached_input_has_that_of_input() -> None:
    assert read_form({"model": "m", "input": "1", "output": "2"}, SetPrice).cached_input is None


def test_a_form_begins_with_the_values_that_there_are() -> None:
    values = {"name": "n", "scopes": ["read"], "expires_at": 1767225600, "models": None, "budget_tokens": 5}
    fields = {field.name: field for field in form_fields(UpdateKey, values, "tools")}
    assert fields.keys() == set(UpdateKey.__struct_fields__) - {"tools"}
    assert (fields["expires_at"].value, fields["models"].value) == ("2026-01-01T00:00:00", "")
    assert (fields["scopes"].kind, fields["scopes"].value) == ("choices", ["read"])
    assert (fields["budget_tokens"].kind, fields["budget_tokens"].value) == ("number", 5)
    assert fields["budget_tokens"].label.endswith("; empty: no budget")
