"""SQL for people: every line of docs/sql.md answers from what a server wrote, and finds it by an index."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import openai
import psycopg
import pytest
from openai import APIStatusError, OpenAI

from tests.fix_server import SCRIPTED
from tests.support.documents import sql_lines
from tests.support.invariants import check
from tests.support.server_process import MODEL, ServerProcess, run_command

LINES = sql_lines()
NOTHING_HERE = (
    "admin.unfinished",
    "admin.search",
    "request_id = 'req_…'",
    "http_status = 429",
    "status = 'cancelled'",
)
"""What lines ask about of which a quiet server has nothing, or that a test cannot name."""
WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


@dataclass
class Traffic:
    """What a server has written that ran and stopped."""

    url: str
    chain: list[str] = field(default_factory=list)
    """Three responses, each of which goes on from the one before it."""
    chat: str = ""
    completion: str = ""


@pytest.fixture(scope="module")
def traffic(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traffic]:
    traffic = Traffic(module_database)
    for model in (MODEL, "another"):
        priced = ["prices", "set", model, "--input", "0.3", "--cached-input", "0.1", "--output", "0.7"]
        assert run_command(*priced, database_url=module_database).returncode == 0
    template = tmp_path_factory.mktemp("prompts") / "greeting"
    template.write_text("Say hello.")
    put = ["prompts", "put", "greeting", str(template), "--tenant", "acme"]
    assert run_command(*put, database_url=module_database).returncode == 0
    answers = json.dumps([("weather", '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>')])
    server = ServerProcess(module_database, settings={**SCRIPTED, "scripted_answers": answers})
    server.start()
    made = run_command("keys", "create", "--tenant", "acme", database_url=module_database)
    with OpenAI(base_url=server.api, api_key=made.stdout.strip(), max_retries=0, timeout=60) as client:
        _ask(client, traffic)
        wrong = client.with_options(api_key="hk_wrong")
        for _ in range(3):
            with pytest.raises(APIStatusError):
                wrong.models.list()
    server.ask_to_end()
    assert server.wait() == 0
    server.stop()
    yield traffic
    check(module_database)


def _ask(client: OpenAI, traffic: Traffic) -> None:
    for turn in range(3):
        previous: Any = {"previous_response_id": traffic.chain[-1]} if turn else {}
        answer = client.responses.create(model=MODEL, input="Hello", user="user-42", **previous)
        traffic.chain.append(answer.id)
    client.responses.create(model=MODEL, input="What is the weather?", tools=[WEATHER], background=True)
    tags = {"team": "red", "variant": "a", "note": "x" * 65}
    client.responses.create(model=MODEL, input="Hello", metadata=tags, max_output_tokens=16)
    client.responses.create(model=MODEL, prompt={"id": "greeting", "version": "1"}, temperature=0.5)
    client.responses.create(model=MODEL, input="Hello", store=False, safety_identifier="somebody")
    messages: Any = [{"role": "user", "content": "Hello"}]
    chat = client.chat.completions.create(model=MODEL, messages=messages, store=True, user="user-42")
    completion = client.completions.create(model=MODEL, prompt="Hello", user="x" * 512)
    traffic.chat, traffic.completion = chat.id, completion.id
    conversation = client.conversations.create()
    client.responses.create(model=MODEL, input="Hello", conversation=conversation.id)
    with pytest.raises(APIStatusError):
        client.responses.create(model="none", input="Hello")


def rows(traffic: Traffic, query: str) -> list[Any]:
    with psycopg.connect(traffic.url, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


@pytest.mark.parametrize("line", [line for _, line in LINES], ids=[title for title, _ in LINES])
def test_every_line_of_the_page_answers(traffic: Traffic, line: str) -> None:
    found = rows(traffic, line.replace("resp_…", traffic.chain[-1]))
    assert found or any(words in line for words in NOTHING_HERE)


def test_each_api_leaves_its_kind_and_its_end_user(traffic: Traffic) -> None:
    ledger = "select kind, end_user, background, stored, attempt from usage_ledger order by 1, 2"
    assert set(rows(traffic, ledger)) == {
        ("chat", "user-42", False, True, 1),
        ("completion", "x" * 512, False, False, 1),
        ("response", "somebody", False, False, 1),
        ("response", "user-42", False, True, 1),
        ("response", None, False, True, 1),
        ("response", None, True, True, 1),
    }
    stored = "select kind, end_user from admin.responses where id = admin.uuid_of('{}')"
    assert rows(traffic, stored.format(traffic.chat)) == [("chat", "user-42")]
    assert rows(traffic, stored.format(traffic.chain[0])) == [("response", "user-42")]


def test_views_say_who_asked_how_and_with_what(traffic: Traffic) -> None:
    columns = "temperature, prompt_id, prompt_version, user_agent, items_bytes > 0, stream_bytes > 0"
    asked = f"select {columns} from admin.responses where prompt_id is not null"  # noqa: S608 - of constants
    (row,) = rows(traffic, asked)
    assert row == (0.5, "greeting", "1", f"OpenAI/Python {openai.__version__}", True, True)
    same = (
        "select count(*) from admin.responses where model = '{}' group by prompt_hash order by 1 desc limit 1"
    )
    assert rows(traffic, same.format(MODEL)) >= [(2,)]
    said = "select text from admin.items where response_id = admin.uuid_of('{}') and side = 'input'"
    assert rows(traffic, said.format(traffic.chain[0])) == [("Hello",)]


def test_tags_are_in_the_ledger_and_long_values_are_not(traffic: Traffic) -> None:
    tags = "select metadata, key_name from admin.usage where metadata is not null"
    assert rows(traffic, tags) == [({"team": "red", "variant": "a"}, "")]


def test_refused_requests_are_counted_by_their_key(traffic: Traffic) -> None:
    by_key = (
        "select tenant, http_status, error_code, requests from admin.refused_hourly where key_id like '%'"
    )
    assert rows(traffic, by_key) == [("acme", 404, "model_not_found", 1)]


def test_stored_bytes_of_the_days_are_those_that_are_there(traffic: Traffic) -> None:
    days = "select tenant, sum(growth)::bigint from admin.storage_daily group by 1 order by 1"
    assert rows(traffic, days) == rows(traffic, "select tenant, bytes from admin.storage order by 1") != []


def test_a_chain_is_numbered_from_its_first_response(traffic: Traffic) -> None:
    query = "select turn, response, admin.name_of('resp_', chain_id) from admin.chain('{}')"
    expected = [(turn, response, traffic.chain[0]) for turn, response in enumerate(traffic.chain, 1)]
    assert rows(traffic, query.format(traffic.chain[-1])) == expected
    assert rows(traffic, query.format(traffic.chain[0])) == expected[:1]
    longest = "select max(turn) from admin.responses"
    assert rows(traffic, longest) == [(3,)]


def test_refused_requests_are_counted_with_those_that_fail(traffic: Traffic) -> None:
    columns = "tenant, http_status, error_code, route, requests"
    refused = "select {} from admin.failures_daily where outcome = 'refused'"
    assert set(rows(traffic, refused.format(columns))) == {
        (None, 401, "invalid_api_key", "/v1/models", 3),
        ("acme", 404, "model_not_found", "/v1/responses", 1),
    }


def test_sums_and_costs_are_those_of_the_ledger_to_the_last_digit(traffic: Traffic) -> None:
    sums = "sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(reasoning_tokens), sum(cost)"
    (ledger,) = rows(traffic, f"select count(*), {sums} from usage_ledger")  # noqa: S608 - of constants
    (days,) = rows(traffic, f"select sum(responses), {sums} from admin.usage_daily")  # noqa: S608
    (months,) = rows(traffic, "select sum(responses), sum(tokens), sum(cost) from admin.costs_monthly")
    assert days == ledger
    assert months == (ledger[0], ledger[1] + ledger[3], ledger[5])
    assert str(days[5]) == str(ledger[5])
    assert ledger[5] > 0


def test_every_event_of_a_response_is_found_by_its_id(traffic: Traffic) -> None:
    query = "select type from admin.events where id = admin.uuid_of('{}') order by sequence_number"
    types = [kind for (kind,) in rows(traffic, query.format(traffic.chain[0]))]
    assert (types[0], types[-1]) == ("response.created", "response.completed")


@pytest.mark.parametrize("id_", ["resp_{}", "conv_{}", "chatcmpl-{}", "{}"])
def test_a_uuid_is_made_of_any_id_of_the_api(traffic: Traffic, id_: str) -> None:
    digits = "abcdefab01237000a0000123456789ab"
    assert rows(traffic, f"select replace(admin.uuid_of('{id_.format(digits)}')::text, '-', '')") == [
        (digits,)
    ]


@pytest.mark.parametrize(
    "words", ["admin.events where id", "admin.responses where id", "end_user = ", "admin.items"]
)
def test_lines_about_one_response_or_user_read_no_table_without_an_index(
    traffic: Traffic, words: str
) -> None:
    (line,) = [line for _, line in LINES if words in line]
    asked = line.replace("resp_…", traffic.chain[-1])
    with psycopg.connect(traffic.url, autocommit=True) as connection:
        connection.execute("set enable_seqscan = off; set enable_bitmapscan = off")
        plan = connection.execute(b"explain (costs off) " + asked.encode()).fetchall()
    text = "\n".join(row for (row,) in plan)
    for table in ("responses", "response_streams", "items"):
        assert f"Seq Scan on {table}" not in text, text
    assert "Filter: (id" not in text, text
    assert "Index Cond" in text
