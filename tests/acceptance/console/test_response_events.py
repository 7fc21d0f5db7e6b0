"""A response in the console: its events, timeline, stream and replay; run again and compared."""

from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from tests.acceptance.console.conftest import OpenPage, Operated
from tests.acceptance.console.test_sign_in import form_token
from tests.support.eventually import eventually
from tests.support.server_process import MODEL
from tests.support.sse import parse


def output_text(operated: Operated, response: str) -> str:
    with operated.client(operated.reader) as client:
        return client.responses.retrieve(response).output_text


def events(client: httpx.Client, response: str, **arguments: Any) -> dict[str, Any]:
    answer = client.get(f"/console/responses/{response}/events.json", params=arguments)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def wait_for(page: Any, words: str, place: str = "replay-state") -> None:
    page.locator(f"#{place}", has_text=words).wait_for()


def test_pages_of_events_are_the_api_s_events_with_times(operated: Operated) -> None:
    response = operated.responses["first"]
    headers = {"authorization": f"Bearer {operated.reader}"}
    frames = parse(
        httpx.get(f"{operated.server.api}/responses/{response}?stream=true", headers=headers).content
    )
    with operated.visit(operated.admin) as client:
        whole = events(client, response)
        paged = [events(client, response, after=number - 1, limit=1) for number in range(1, 4)]
    found = whole["events"]
    assert [(one["sequence_number"], one["type"]) for one in found] == [(f.number, f.event) for f in frames]
    assert [one["ms"] for one in found] == sorted(one["ms"] for one in found)
    assert (whole["end"], whole["ended"]) == (len(frames), True)
    assert [page["events"] for page in paged] == [[one] for one in found[1:4]]
    for one, frame in zip(found, frames, strict=True):
        assert one.get("payload", frame.json) == frame.json
        assert one.get("delta", frame.json.get("delta")) == frame.json.get("delta")


def test_a_key_without_contents_gets_types_and_times(operated: Operated) -> None:
    with operated.visit(operated.metadata) as client:
        response = operated.responses["call"]
        for event in events(client, response)["events"]:
            assert not event.keys() & {"delta", "payload"}
        assert "weather" not in client.get(f"/console/responses/{response}/timeline").text


def test_a_key_without_contents_gets_the_code_of_an_error_and_not_its_sentence(operated: Operated) -> None:
    response = operated.responses["call"]
    with psycopg.connect(operated.database_url, autocommit=True) as connection:
        fail = "update responses set error_code = %s, error_message = %s where id = %s"
        for values in (("server_error", "It quotes a secret"), (None, None)):
            connection.execute(fail, (*values, UUID(response.removeprefix("resp_"))))
            for key, quotes in ((operated.admin, True), (operated.metadata, False)):
                with operated.visit(key) as client:
                    page = client.get(f"/console/responses/{response}").text
                assert ("It quotes a secret" in page) == (quotes and values[0] is not None)
                assert (values[0] is None) or ("server_error" in page)


@pytest.mark.parametrize("arguments", ["after=-2", "after=x", "limit=" + "9" * 20])
def test_numbers_that_are_none_are_refused(operated: Operated, arguments: str) -> None:
    with operated.visit(operated.admin) as client:
        answer = client.get(f"/console/responses/{operated.responses['first']}/events.json?{arguments}")
    assert answer.status_code == 400


def test_the_timeline_has_marks_and_a_lane_also_without_javascript(
    open_page: OpenPage, operated: Operated
) -> None:
    page = open_page(f"/console/responses/{operated.responses['first']}", java_script_enabled=False)
    page.click("#timeline a")
    page.click("text=As text")
    text = page.inner_text("#timeline-text")
    for words in ("created", "started", "first token", "incomplete", "item 0, message"):
        assert words in text
    assert page.locator("svg.lane").count() == 2


def test_the_stream_is_the_api_s_and_goes_on_where_an_event_source_was(operated: Operated) -> None:
    address = f"/console/responses/{operated.responses['first']}/stream"
    with operated.visit(operated.admin) as client:
        whole = client.get(address)
        rest = client.get(f"{address}?starting_after=1", headers={"last-event-id": "5"})
        last = whole.content.count(b"id: ") - 1
        done = client.get(address, headers={"last-event-id": str(last)})
    assert whole.headers["content-type"].startswith("text/event-stream")
    assert b"event:" not in whole.content
    assert rest.content == whole.content[whole.content.index(b"id: 6-") :]
    assert (done.status_code, done.content) == (204, b"")


def test_a_replay_ends_with_exactly_the_stored_text(open_page: OpenPage, operated: Operated) -> None:
    response = operated.responses["second"]
    page = open_page(f"/console/responses/{response}")
    page.select_option("#replay-speed", "0")
    page.keyboard.press("Space")
    wait_for(page, "exactly the stored one")
    assert page.text_content("#replay-text-0-0") == output_text(operated, response)
    page.click("text=Copy as curl")
    last = page.get_attribute("#replay-position", "max")
    assert f"{response}?stream=true&starting_after={last}" in page.text_content("#replay-curl")


def test_the_position_of_a_replay_is_in_the_address(open_page: OpenPage, operated: Operated) -> None:
    response = operated.responses["second"]
    with operated.visit(operated.admin) as client:
        found = events(client, response)["events"]
    page = open_page(f"/console/responses/{response}?event=10")
    wait_for(page, '"sequence_number": 10', "replay-payload")
    assert page.text_content("#replay-text-0-0") == "".join(one.get("delta", "") for one in found[:11])
    page.fill("#replay-position", "7")
    wait_for(page, '"sequence_number": 7', "replay-payload")
    assert page.text_content("#replay-text-0-0") == "".join(one.get("delta", "") for one in found[:8])
    assert page.url.endswith("event=7")


def test_a_running_response_is_followed_to_its_end(open_page: OpenPage, operated: Operated) -> None:
    with operated.client(operated.reader) as client:
        made = client.responses.create(model=MODEL, input="Go", background=True, max_output_tokens=400)
    page = open_page(f"/console/responses/{made.id}")
    wait_for(page, "exactly the stored one")
    assert page.text_content("#replay-text-0-0") == output_text(operated, made.id)
    page.locator("#response h1", has_text="incomplete").wait_for()
    page.locator("#timeline", has_text="incomplete").wait_for()


def test_a_response_runs_again_with_its_seed_and_its_text_is_the_same(operated: Operated) -> None:
    first = operated.responses["second"]
    with operated.visit(operated.admin) as client:
        form = f"/console/responses/{first}/run"
        answer = client.post(form, data={"form_token": form_token(client, form)})
    assert answer.status_code == 303, answer.text
    made = answer.headers["location"].removeprefix("/console/responses/").partition("?")[0]
    assert answer.headers["location"].endswith(f"?compare={first}")
    with operated.client(operated.reader) as api:
        eventually(lambda: api.responses.retrieve(made).status not in ("queued", "in_progress"))
        again = api.responses.retrieve(made)
        before = api.responses.retrieve(first)
        assert again.output_text == before.output_text
        assert again.previous_response_id == before.previous_response_id
        first_inputs, inputs = (
            [item.to_dict()["content"] for item in api.responses.input_items.list(one).data]
            for one in (first, made)
        )
        assert inputs == first_inputs
    with psycopg.connect(operated.database_url) as connection:
        query = "select tenant, target, details ->> 'of' from audit_trail where action = 'response.run_again'"
        assert ("acme", made, first) in connection.execute(query).fetchall()


@pytest.mark.parametrize(
    ("request_text", "says"),
    [
        ("{", "not JSON"),
        ('{"model": "other"}', "other"),
        ('{"model": "holdfast-demo", "temperature": 9}', "temperature"),
        ('{"model": "holdfast-demo", "input": 3}', "input"),
    ],
)
def test_a_changed_request_that_is_refused_stays_in_the_form(
    operated: Operated, request_text: str, says: str
) -> None:
    form = f"/console/responses/{operated.responses['first']}/run"
    with operated.visit(operated.admin) as client:
        data = {"form_token": form_token(client, form), "request": request_text}
        answer = client.post(form, data=data)
    assert answer.status_code in (400, 404)
    assert says in answer.text
    assert request_text.split(":")[0].replace('"', "&#34;") in answer.text


def test_a_changed_request_runs_and_is_compared(open_page: OpenPage, operated: Operated) -> None:
    page = open_page(f"/console/responses/{operated.responses['first']}/run")
    page.fill("textarea", f'{{"model": "{MODEL}", "max_output_tokens": 16, "instructions": "Otherwise"}}')
    page.click("text=Run with these parameters")
    page.locator("#response h1", has_text="incomplete").wait_for()
    page.click("text=Compare with")
    assert page.locator("#parameters tr.differs", has_text="Otherwise").count() == 1
    assert page.locator("#facts tr.differs", has_text="Output tokens").count() == 1
    assert page.locator("#input-diff", has_text="Both are equal").count() == 1


def test_a_response_is_compared_with_its_relatives(operated: Operated) -> None:
    first, second = operated.responses["first"], operated.responses["second"]
    with operated.visit(operated.metadata) as client:
        assert f"/console/compare?a={first}&amp;b={second}" in client.get(f"/console/compare?a={first}").text
        both = client.get(f"/console/compare?a={first}&b={second}").text
        assert client.get("/console/compare?a=x").status_code == 400
        assert client.get(f"/console/compare?a=resp_{'0' * 32}").status_code == 404
    assert "output-diff" not in both
    assert "Output tokens" in both
