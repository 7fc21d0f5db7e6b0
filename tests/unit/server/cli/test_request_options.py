import argparse
from datetime import UTC, datetime

import pytest
from msgspec import UNSET, Struct

from server.cli.command import described_limits
from server.cli.options import add_request_options, request_of
from server.configuration import settings
from server.errors import InvalidRequest
from server.protocol.administration.objects import Limited
from server.protocol.administration.requests import CreateKey, SetPrice, UpdateKey

NOW = datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)


def parse(request: type[Struct], *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_request_options(parser, request, "tenant", "model")
    return parser.parse_args(arguments)


def test_what_is_given_is_in_the_request_and_nothing_else() -> None:
    options = parse(UpdateKey, "--rpm", "none", "--tpm", "9", "--scopes", "read,write", "--no-end-streams")
    assert request_of(UpdateKey, options) == UpdateKey(
        requests_per_minute=None, tokens_per_minute=9, scopes=["read", "write"], ends_streams=False
    )
    assert request_of(UpdateKey, parse(UpdateKey)) == UpdateKey()


def test_a_value_that_the_command_gives_stays_unless_an_option_says_otherwise() -> None:
    made = request_of(CreateKey, parse(CreateKey), tenant="acme", scopes=["admin"])
    assert (made.tenant, made.scopes, made.name) == ("acme", ["admin"], UNSET)
    options = parse(CreateKey, "--scopes", "read")
    assert request_of(CreateKey, options, tenant="acme", scopes=["admin"]).scopes == ["read"]


def test_a_duration_begins_now_and_ends_at_a_whole_second() -> None:
    assert request_of(UpdateKey, parse(UpdateKey, "--expires", "1d"), NOW).expires_at == 1767312000
    options = parse(SetPrice, "--input", "1", "--output", "2", "--from", "2026-01-01")
    assert request_of(SetPrice, options, NOW, model="m").valid_from == 1767225600


def test_a_value_out_of_bounds_is_refused_with_its_bounds() -> None:
    with pytest.raises(InvalidRequest, match="requests_per_minute is from 1 to"):
        request_of(UpdateKey, parse(UpdateKey, "--rpm", "0"))


def test_no_option_is_taken_for_a_setting_of_the_server() -> None:
    known = {setting.name for setting in settings.settings()}
    assert known.isdisjoint(vars(parse(UpdateKey, "--rpm", "1", "--budget-cost", "1")))


def test_limits_are_described_in_words() -> None:
    limited = Limited(
        id="x",
        requests_per_minute=None,
        tokens_per_minute=None,
        budget_tokens=None,
        budget_cost=None,
        budget_period="month",
        budget=None,
    )
    assert described_limits(limited) == ""
    limited = Limited(
        id="x",
        requests_per_minute=60,
        tokens_per_minute=1000,
        budget_tokens=5,
        budget_cost="100",
        budget_period="total",
        budget=None,
    )
    assert (
        described_limits(limited) == "60 requests/min, 1000 tokens/min, 5 tokens in all, costs of 100 in all"
    )
