"""The playground in a browser: an answer survives a reload, a call is answered, a mistake keeps the form."""

import json
from typing import Any

import psycopg

from tests.acceptance.console.conftest import OpenPage, Operated
from tests.support.eventually import eventually
from tests.support.server_process import MODEL

TOOLS = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}]


def shown_text(page: Any) -> str:
    """The answer's text so far: while it is written, and after it."""
    text: str = page.locator("#running-text, .item.assistant .prose").last.text_content()
    return text.strip()


def wait_for_characters(page: Any, count: int) -> None:
    eventually(lambda: len(shown_text(page)) > count)


def test_a_reload_in_mid_stream_loses_no_character(open_page: OpenPage, operated: Operated) -> None:
    page = open_page("/console/playground")
    page.fill("textarea[name=input]", "Say much")
    page.fill("input[name=max_output_tokens]", "300")
    page.click("#send")
    for length in (50, 200):
        wait_for_characters(page, length)
        page.reload()
    wait_for_characters(page, 400)
    seen = shown_text(page)
    page.wait_for_selector("#send")
    name = page.url.rpartition("=")[2]
    with operated.client(operated.admin) as client:
        stored = client.responses.retrieve(name)
    assert stored.background
    assert stored.output_text.startswith(seen)
    assert page.inner_text(".item.assistant .prose").strip() == stored.output_text.strip()


def test_the_next_message_goes_on_from_the_last_answer_with_the_same_parameters(
    open_page: OpenPage, operated: Operated
) -> None:
    page = open_page("/console/playground")
    page.fill("textarea[name=input]", "One")
    page.fill("textarea[name=instructions]", "Be brief.")
    page.fill("input[name=max_output_tokens]", "16")
    page.fill("textarea[name=tools]", json.dumps(TOOLS))
    page.click("#send")
    page.wait_for_selector("#send")
    first = page.url
    page.fill("textarea[name=input]", "Two")
    page.press("textarea[name=input]", "Control+Enter")
    page.wait_for_url(lambda url: url not in (first, f"{operated.url}/console/playground"))
    page.wait_for_selector("#send")
    assert page.locator(".item.user").count() == 2
    with operated.client(operated.admin) as client:
        second = client.responses.retrieve(page.url.rpartition("=")[2])
    assert second.previous_response_id == first.rpartition("=")[2]
    assert (second.instructions, second.max_output_tokens) == ("Be brief.", 16)
    assert [tool.type for tool in second.tools] == ["function"]


def test_the_request_is_shown_as_code_that_names_what_was_asked(
    open_page: OpenPage, operated: Operated
) -> None:
    page = open_page("/console/playground")
    page.fill("textarea[name=input]", "Show me the code")
    page.fill("input[name=temperature]", "0.5")
    page.fill("input[name=max_output_tokens]", "16")
    page.click("#send")
    page.wait_for_selector("#send")
    for name in ("curl", "Python", "JavaScript"):
        page.click(f"summary:text-is('{name}')")
        shown = page.inner_text(f"details:has(> summary:text-is('{name}')) pre")
        assert "Show me the code" in shown
        assert "0.5" in shown
        assert operated.admin not in shown


def test_a_mistake_is_said_and_the_form_stays(open_page: OpenPage, operated: Operated) -> None:
    page = open_page("/console/playground", forgives="status of 400")
    page.fill("textarea[name=input]", "Hello")
    page.fill("textarea[name=tools]", "[{]")
    page.click("#send")
    assert "tools is not JSON" in page.inner_text("[role=alert]")
    assert page.input_value("textarea[name=input]") == "Hello"
    assert page.input_value("textarea[name=tools]") == "[{]"


def test_a_conversation_of_another_tenant_is_not_gone_on_from(
    open_page: OpenPage, operated: Operated
) -> None:
    name = operated.responses["first"]
    with operated.visit(operated.admin) as client:
        answer = client.get(f"/console/playground?response={name}")
    assert answer.status_code == 400
    assert "Your tenant has no response" in answer.text


def test_the_output_of_a_call_is_sent_back(open_page: OpenPage, operated: Operated) -> None:
    with operated.client(operated.admin) as client:
        made = client.responses.create(model=MODEL, input="Call", max_output_tokens=16).id
    call = {"type": "function_call", "id": f"fc_{made[5:]}o0", "call_id": "call_9", "name": "weather"}
    with psycopg.connect(operated.database_url) as connection:
        change = (
            "update items set payload = %s::json, type = 'function_call', name = 'weather',"
            " call_id = 'call_9', role = null where response_id = %s::uuid and side = 1"
        )
        connection.execute(change, [json.dumps({**call, "arguments": "{}", "status": "completed"}), made[5:]])
    page = open_page(f"/console/playground?response={made}")
    page.fill("textarea[name='output:call_9']", "sunny")
    page.click("#send")
    page.wait_for_selector("#send")
    assert page.locator(".item.output").inner_text().endswith("sunny")
