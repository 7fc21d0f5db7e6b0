"""An operator's day at the terminal, as a client sees it: tenant, key, limit, budget, rotation, end."""

import json
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from openai import APIStatusError, AuthenticationError, OpenAI, RateLimitError

from tests.fix_server import Connect, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command

Run = Callable[..., str]


@pytest.fixture
def run(database_url: str) -> Run:
    def run(*arguments: str, code: int = 0) -> str:
        done = run_command(*arguments, database_url=database_url)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout.strip() if code == 0 else done.stderr.strip()

    return run


def refused(client: OpenAI) -> APIStatusError:
    with pytest.raises(APIStatusError) as error:
        client.responses.create(model=MODEL, input="Hello")
    return error.value


def test_day_from_the_first_key_to_the_last(
    start_server: StartServer, connect: Connect, database_url: str, run: Run
) -> None:
    server = start_server()
    run("tenants", "create", "acme", "--contact", "ops@acme.example", "--retention-days", "7")
    text = run("keys", "create", "--tenant", "acme", "--name", "backend", "--expires", "30d", "--rpm", "2")
    key_id = text.split("_")[1]
    client = connect(server, text)
    check_retention(database_url, client.responses.create(model=MODEL, input="Hello").id)

    raw = client.responses.with_raw_response.create(model=MODEL, input="Hello")
    assert raw.headers["x-ratelimit-limit-requests"] == "2"
    assert raw.headers["x-ratelimit-remaining-requests"] == "0"
    assert raw.headers["x-ratelimit-reset-requests"].endswith("s")
    error = refused(client)
    assert isinstance(error, RateLimitError)
    assert (error.code, error.type) == ("rate_limit_exceeded", "requests")
    assert 1 <= int(error.response.headers["retry-after"]) <= 62
    assert error.response.headers["x-ratelimit-remaining-requests"] == "0"

    run("keys", "update", key_id, "--rpm", "none", "--tpm", "100")
    raw = client.responses.with_raw_response.create(model=MODEL, input="Hello", max_output_tokens=30)
    assert raw.headers["x-ratelimit-limit-tokens"] == "100"
    assert int(raw.headers["x-ratelimit-remaining-tokens"]) < 70
    too_large = refused(client)  # by default 1,024 tokens are reserved for an output
    assert (too_large.status_code, too_large.type) == (429, "tokens")
    assert "can never fit" in str(too_large)

    run("keys", "update", key_id, "--tpm", "none")
    run("prices", "set", MODEL, "--input", "1000", "--output", "2000")
    client.responses.create(model=MODEL, input="Hello")
    run("tenants", "update", "acme", "--budget-cost", "0.001", "--budget-period", "day")
    exceeded = refused(client)
    assert (exceeded.status_code, exceeded.code, exceeded.type) == (429, *["insufficient_quota"] * 2)
    assert "tenant acme has a budget of 0.001 in costs a day; it renews on" in str(exceeded)
    run("tenants", "update", "acme", "--budget-cost", "none")

    successor = connect(server, rotated := run("keys", "rotate", key_id, "--overlap", "1h"))
    for either in (client, successor):
        either.responses.create(model=MODEL, input="Hello")
    assert "was replaced by" in run("keys", "rotate", key_id, code=1)
    check_listed(run, key_id, rotated.split("_")[1])

    assert "has 2 valid keys; revoke first" in run("tenants", "delete", "acme", code=1)
    for one in (key_id, rotated.split("_")[1]):
        run("keys", "revoke", one, "--end")
    for either in (client, successor):
        with pytest.raises(AuthenticationError):
            either.models.list()
    run("tenants", "delete", "acme")
    check_trail(database_url, key_id)


def check_retention(database_url: str, response: str) -> None:
    with psycopg.connect(database_url) as connection:
        (lifetime,) = connection.execute(
            "select expires_at - created_at from responses where id = cast(%s as uuid)",
            [response.removeprefix("resp_")],
        ).fetchone() or (None,)
    assert lifetime == timedelta(days=7)


def check_listed(run: Run, old: str, new: str) -> None:
    listed = {key["id"]: key for key in map(json.loads, run("keys", "list", "--json").splitlines())}
    assert set(listed) == {old, new}
    assert listed[old]["replaced_by"] == new
    assert listed[new]["first_key"] == old
    assert listed[old]["expires_at"] < listed[new]["expires_at"]
    assert {key["name"] for key in listed.values()} == {"backend"}
    assert "digest" not in listed[old]
    lines = run("keys", "list").splitlines()
    assert f"replaced by {new}" in lines[1]
    assert "backend" in lines[0]


def check_trail(database_url: str, key_id: str) -> None:
    with psycopg.connect(database_url) as connection:
        trail = connection.execute(
            "select actor, action, tenant, target, details from audit_trail order by at"
        )
        entries = trail.fetchall()
    actions = [action for _, action, *_ in entries if action != "process.start"]
    assert actions == [
        "tenant.create",
        "key.create",
        "key.first_use",
        "key.update",
        "key.update",
        "price.set",
        "tenant.update",
        "tenant.update",
        "key.rotate",
        "key.first_use",
        "key.revoke",
        "key.revoke",
        "tenant.delete",
    ]
    by_action = {
        action: (actor, tenant, target, details) for actor, action, tenant, target, details in entries[:4]
    }
    actor, tenant, target, details = by_action["key.create"]
    assert actor.startswith("user:")
    assert (tenant, target) == ("acme", key_id)
    assert (details["requests_per_minute"], details["name"]) == (2, "backend")
    assert by_action["key.first_use"][0] == f"key:{key_id}"


def test_client_that_waits_as_it_is_told_gets_its_answer(
    start_server: StartServer, connect: Connect, database_url: str, run: Run
) -> None:
    server, text = start_server(), run("keys", "create", "--rpm", "1")
    client = connect(server, text)
    client.responses.create(model=MODEL, input="Hello")
    with psycopg.connect(database_url) as connection:  # nearly a minute ago
        connection.execute("update rate_buckets set full_at = full_at - interval '58 s'")
    assert client.with_options(max_retries=4).responses.create(model=MODEL, input="Hello").id


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("keys", "create", "--tenant", "No!"), "A tenant's name is"),
        (
            ("keys", "create", "--scopes", "read,fly"),
            "scopes are one or more of",
        ),
        (("keys", "create", "--rpm", "0"), "requests_per_minute is from 1 to"),
        (("keys", "create", "--models", ","), "models is 1 to 256 names"),
        (("keys", "create", "--expires", "0s"), "expires_at is a time to come"),
        (("keys", "create", "--budget-cost", "-1"), "budget_cost is from 0 to"),
        (("keys", "update", "none", "--rpm", "1"), "There is no valid key 'none'"),
        (("keys", "rotate", "none"), "There is no valid key 'none'"),
        (("keys", "rotate", "none", "--overlap", "91d"), "overlap is from 0 to 90 days"),
        (("keys", "revoke", "none"), "There is no valid key 'none'"),
        (("tenants", "update", "none", "--rpm", "1"), "'none' has no settings"),
        (("tenants", "show", "none"), "'none' has no settings"),
        (("tenants", "create", "a", "--retention-days", "99999"), "retention_days is from 0 to 36500"),
        (("prices", "set", "m", "--input", "1", "--output", "9e99"), "output is from 0 to"),
    ],
)
def test_mistake_is_answered_with_one_sentence(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    said = run(*arguments, code=1)
    assert sentence in said
    assert said.startswith("holdfast: ")
    assert "\n" not in said


def test_budget_of_tokens_bounds_the_last_answer_and_refuses_what_does_not_fit(
    start_server: StartServer, connect: Connect, run: Run
) -> None:
    server, text = start_server(), run("keys", "create", "--budget-tokens", "40", "--budget-period", "total")
    client = connect(server, text)
    used: list[int] = []

    def exceeded() -> RateLimitError | None:
        try:
            usage = client.responses.create(model=MODEL, input="Hello", store=False).usage
        except RateLimitError as error:
            return error
        assert usage is not None
        used.append(usage.total_tokens)
        return None

    error = eventually(exceeded)
    assert error is not None
    assert (error.code, error.type) == ("insufficient_quota", "insufficient_quota")
    assert "40 tokens in all; it does not renew" in str(error)
    assert sum(used) <= 40
    check_standing(run, text.split("_")[1], sum(used))


def check_standing(run: Run, key_id: str, used: int) -> None:
    """The key's list and its tenant's settings say what is spent and what is left."""
    assert f"40 tokens in all ({used} spent, 0 reserved, {40 - used} left)" in run("keys", "list")
    listed = {key["id"]: key for key in map(json.loads, run("keys", "list", "--json").splitlines())}
    budget = listed[key_id]["budget"]
    assert (budget["spent_tokens"], budget["remaining_tokens"]) == (used, 40 - used)
    run("tenants", "create", "default", "--budget-cost", "2.5", "--budget-tokens", str(used))
    shown = run("tenants", "show", "default")
    assert f"{used} tokens a month ({used} spent, 0 reserved, 0 left)" in shown
    assert "costs of 2.5 a month (0 spent, 0 reserved, 2.5 left)" in shown
    assert json.loads(run("tenants", "show", "default", "--json"))["budget"]["remaining_cost"] == "2.5"


def test_settings_of_the_default_tenant_hold_without_a_key(
    start_server: StartServer, connect: Connect, run: Run
) -> None:
    server: ServerProcess = start_server()
    run("tenants", "create", "default", "--rpm", "1")
    client = connect(server)

    def is_refused() -> bool:
        try:
            client.responses.create(model=MODEL, input="Hello")
        except RateLimitError:
            return True
        return False

    eventually(is_refused, within=10)
