"""What is stored can be listed: responses, and what each of them was given."""

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from tests.acceptance.error_object import check_error
from tests.fix_server import Connect
from tests.support.server_process import MODEL, ServerProcess

UNKNOWN_ID = "resp_" + "0" * 32
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
CALL_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "7"}
ITEMS: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": "What is f?"}]},
    {"type": "reasoning", "id": "rs_foreign", "summary": [], "encrypted_content": "of somebody else"},
    CALL,
    CALL_OUTPUT,
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
    {"role": "user", "content": "And now?"},
]


def get(server: ServerProcess, path: str, **params: str | int) -> httpx.Response:
    return httpx.get(f"{server.api}{path}", params=params)


def make(server: ServerProcess, **more: object) -> str:
    answer = httpx.post(f"{server.api}/responses", json={"model": MODEL, "input": "Hello", **more})
    assert answer.status_code == 200, answer.text
    made: str = answer.json()["id"]
    return made


def ids_of(answer: httpx.Response) -> list[str]:
    page = answer.json()
    assert page["object"] == "list", page
    found = [one["id"] for one in page["data"]]
    assert (page["first_id"], page["last_id"]) == ((found[0], found[-1]) if found else (None, None))
    return found


def walk(server: ServerProcess, path: str, **params: str | int) -> list[str]:
    """All ids of a list, page by page."""
    found: list[str] = []
    more = True
    while more:
        answer = get(server, path, **params, **({"after": found[-1]} if found else {}))
        found += ids_of(answer)
        more = answer.json()["has_more"]
    return found


def test_every_input_item_is_listed_with_an_id_and_decodes_with_the_sdk(
    scripted_server: ServerProcess,
) -> None:
    answer = get(scripted_server, f"/responses/{make(scripted_server, input=ITEMS)}/input_items", order="asc")
    listed = answer.json()["data"]
    assert [item["type"] for item in listed] == [item.get("type", "message") for item in ITEMS]
    assert len({item["id"] for item in listed}) == len(ITEMS)
    for item in listed:
        TypeAdapter[Any](ResponseItem).validate_python(item)


def test_input_items_come_newest_first_unless_asked_otherwise(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    response = make(scripted_server, input=ITEMS)
    items = connect(scripted_server).responses.input_items
    newest = [item.id for item in items.list(response)]
    oldest = [item.id for item in items.list(response, order="asc", include=["reasoning.encrypted_content"])]
    assert len(newest) == len(ITEMS)
    assert oldest == newest[::-1]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 7, 8])
def test_pages_of_input_items_join_to_the_whole_list(
    scripted_server: ServerProcess, order: str, limit: int
) -> None:
    path = f"/responses/{make(scripted_server, input=ITEMS)}/input_items"
    whole = ids_of(get(scripted_server, path, order=order, limit=100))
    assert walk(scripted_server, path, order=order, limit=limit) == whole


def sent_again(first: str, server: ServerProcess) -> list[dict[str, Any]]:
    """What a client without state sends after that response: its output, and the next question."""
    output = get(server, f"/responses/{first}").json()["output"]
    return [*ITEMS[:1], *output, {"role": "user", "content": "And now?"}]


def test_items_that_are_sent_again_keep_their_ids_and_are_cursors_by_them(
    scripted_server: ServerProcess,
) -> None:
    first = make(scripted_server)
    called = {**CALL, "id": "fc_68af1"}
    output = sent_again(first, scripted_server)
    path = (
        f"/responses/{make(scripted_server, input=[*ITEMS[2:3], called, CALL_OUTPUT, *output])}/input_items"
    )
    listed = ids_of(get(scripted_server, path, order="asc"))
    assert listed[:2] == ["rs_foreign", "fc_68af1"]
    sent = [item["id"] for item in output if "id" in item]
    assert sent
    assert set(sent) < set(listed)
    assert walk(scripted_server, path, order="asc", limit=1) == listed
    assert ids_of(get(scripted_server, path, order="asc", after=sent[-1])) == listed[-1:]


def test_a_reference_is_to_the_item_that_the_id_was_made_for_while_it_is_there(
    scripted_server: ServerProcess,
) -> None:
    first = make(scripted_server)
    (made,) = [item for item in sent_again(first, scripted_server) if item.get("type") == "message"]
    forged = {**made, "content": "It was never said."}
    copies = [make(scripted_server, input=[forged, *ITEMS[:1]]) for _ in range(2)]

    def referred() -> str:
        response = make(scripted_server, input=[{"type": "item_reference", "id": made["id"]}])
        (item,) = get(scripted_server, f"/responses/{response}/input_items").json()["data"]
        assert item["id"] == made["id"]
        httpx.delete(f"{scripted_server.api}/responses/{response}").raise_for_status()
        text: str = item["content"][0]["text"]
        return text

    assert referred() == made["content"][0]["text"]
    httpx.delete(f"{scripted_server.api}/responses/{first}").raise_for_status()
    assert referred() == forged["content"]
    assert made["id"] in ids_of(get(scripted_server, f"/responses/{copies[1]}/input_items"))


@pytest.mark.parametrize("sent", ["call_1", "rs_1", "msg_" + "a" * 61, "msg_a b", "msg_\u00e9", ""])
def test_an_id_of_another_form_is_replaced(scripted_server: ServerProcess, sent: str) -> None:
    again = {"id": sent, "role": "user", "content": "Hello"}
    path = f"/responses/{make(scripted_server, input=[again, again])}/input_items"
    listed = ids_of(get(scripted_server, path))
    assert len({*listed, sent}) == 3


def refused_as_duplicate(answer: httpx.Response, item_id: str) -> None:
    """The answer is OpenAI's refusal of an item that is there already."""
    error = check_error(answer, 400, "invalid_request_error")
    words = f"Duplicate item found with id {item_id}. Remove duplicate items from your input and try again."
    assert (error["param"], error["message"]) == ("input", words)


def test_an_item_that_the_history_has_is_refused_and_elsewhere_it_is_another_one(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    conversations = connect(scripted_server).conversations
    ours, other = (conversations.create(items=[{"role": "user", "content": "Hello"}]).id for _ in range(2))
    first = make(scripted_server, conversation=ours)
    output = sent_again(first, scripted_server)
    (said,) = [item["id"] for item in output if item.get("type") == "message"]
    reference = {"type": "item_reference", "id": said}
    for history in ({"previous_response_id": first}, {"conversation": ours}):
        for items in (output, [reference]):
            body = {"model": MODEL, "input": items, **history}
            refused_as_duplicate(httpx.post(f"{scripted_server.api}/responses", json=body), said)
    listed = ids_of(get(scripted_server, f"/responses/{make(scripted_server, input=output)}/input_items"))
    assert said in listed
    copied = make(scripted_server, input=output, conversation=other)
    listed = ids_of(get(scripted_server, f"/responses/{copied}/input_items"))
    assert (len(listed), said in listed) == (len(output), False)


@pytest.mark.parametrize("item", [{"role": "user", "content": "Hello"}, ITEMS[5], ITEMS[2]])
def test_an_id_that_is_in_the_input_twice_is_refused_in_openai_s_words(
    scripted_server: ServerProcess, item: dict[str, Any]
) -> None:
    again = {"id": "msg_1", **item}
    body = {"model": MODEL, "input": [again, {"role": "user", "content": "Hi"}, again]}
    refused_as_duplicate(httpx.post(f"{scripted_server.api}/responses", json=body), again["id"])


def test_an_item_that_a_conversation_has_is_not_added_again(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    conversations = connect(scripted_server).conversations
    again = {"id": "msg_1", "role": "user", "content": "Hello"}
    body = {"items": [again, again]}
    refused_as_duplicate(httpx.post(f"{scripted_server.api}/conversations", json=body), "msg_1")
    ours, other = (conversations.create().id for _ in range(2))
    path = f"{scripted_server.api}/conversations/{{}}/items"
    refused_as_duplicate(httpx.post(path.format(ours), json=body), "msg_1")
    assert conversations.items.list(ours).data == []
    (added,) = httpx.post(path.format(ours), json={"items": [again]}).json()["data"]
    reference = {"type": "item_reference", "id": added["id"]}
    for item in (added, reference):
        refused_as_duplicate(httpx.post(path.format(ours), json={"items": [item]}), added["id"])
        assert httpx.post(path.format(other), json={"items": [item]}).status_code == 200
    assert [item.id for item in conversations.items.list(ours).data] == [added["id"]]


def test_input_items_are_the_response_s_own(scripted_server: ServerProcess) -> None:
    first = make(scripted_server, input=ITEMS)
    second = make(scripted_server, input="More", previous_response_id=first)
    assert len(ids_of(get(scripted_server, f"/responses/{second}/input_items"))) == 1


BAD_PAGES: list[tuple[Mapping[str, str], str]] = [
    ({"limit": "0"}, "limit"),
    ({"limit": "101"}, "limit"),
    ({"limit": "-1"}, "limit"),
    ({"limit": "many"}, "limit"),
    ({"order": "random"}, "order"),
    ({"after": "msg_nowhere"}, "after"),
    ({"after": "nul\0"}, "after"),
]


@pytest.mark.parametrize(("params", "param"), BAD_PAGES)
@pytest.mark.parametrize("path", ["/responses", "/responses/{id}/input_items"])
def test_bad_page_is_refused_by_name(
    scripted_server: ServerProcess, path: str, params: Mapping[str, str], param: str
) -> None:
    answer = get(scripted_server, path.format(id=make(scripted_server)), **params)
    assert check_error(answer, 400, "invalid_request_error")["param"] == param


def test_item_of_another_response_is_no_cursor(scripted_server: ServerProcess) -> None:
    paths = [f"/responses/{make(scripted_server)}/input_items" for _ in range(2)]
    foreign = ids_of(get(scripted_server, paths[0]))[0]
    error = check_error(get(scripted_server, paths[1], after=foreign), 400, "invalid_request_error")
    assert error["param"] == "after"


@pytest.mark.parametrize("response", [UNKNOWN_ID, "resp_x", "deleted", "unstored"])
def test_input_items_of_what_is_not_there_are_not_found(
    scripted_server: ServerProcess, response: str
) -> None:
    if response == "deleted":
        response = make(scripted_server)
        httpx.delete(f"{scripted_server.api}/responses/{response}").raise_for_status()
    if response == "unstored":
        response = make(scripted_server, store=False)
    check_error(get(scripted_server, f"/responses/{response}/input_items"), 404, "invalid_request_error")


def test_responses_are_listed_whole_and_newest_first(scripted_server: ServerProcess) -> None:
    made = [make(scripted_server, metadata={"list": "whole"}) for _ in range(3)]
    answer = get(scripted_server, "/responses", **{"metadata[list]": "whole"})
    assert ids_of(answer) == made[::-1]
    for response in answer.json()["data"]:
        assert response == get(scripted_server, f"/responses/{response['id']}").json()


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_responses_join_to_the_whole_list(scripted_server: ServerProcess, order: str) -> None:
    made = [make(scripted_server, metadata={"list": f"joined {order}"}) for _ in range(5)]
    asked = {"metadata[list]": f"joined {order}", "order": order}
    expected = made if order == "asc" else made[::-1]
    assert walk(scripted_server, "/responses", limit=2, **asked) == expected


def test_responses_are_listed_by_model_status_and_all_given_metadata(scripted_server: ServerProcess) -> None:
    mark = {"list": "filtered"}
    done = make(scripted_server, metadata={**mark, "colour": 'rot "weiß"'})
    cut = make(scripted_server, metadata={**mark, "colour": "blue"}, max_output_tokens=3)
    both = {"metadata[list]": "filtered"}
    assert ids_of(get(scripted_server, "/responses", **both)) == [cut, done]
    assert ids_of(get(scripted_server, "/responses", **both, status="incomplete")) == [cut]
    assert ids_of(get(scripted_server, "/responses", **both, model=MODEL, status="completed")) == [done]
    assert ids_of(get(scripted_server, "/responses", **both, model="another")) == []
    assert ids_of(get(scripted_server, "/responses", **both, **{"metadata[colour]": 'rot "weiß"'})) == [done]


def test_list_goes_on_after_a_response_that_was_deleted_meanwhile(scripted_server: ServerProcess) -> None:
    made = [make(scripted_server, metadata={"list": "deleted"}) for _ in range(3)]
    make(scripted_server, previous_response_id=made[1])
    httpx.delete(f"{scripted_server.api}/responses/{made[1]}").raise_for_status()
    asked = {"metadata[list]": "deleted"}
    assert ids_of(get(scripted_server, "/responses", **asked, after=made[1])) == [made[0]]
    assert ids_of(get(scripted_server, "/responses", **asked)) == [made[2], made[0]]


def test_unknown_status_is_refused(scripted_server: ServerProcess) -> None:
    error = check_error(get(scripted_server, "/responses", status="lost"), 400, "invalid_request_error")
    assert error["param"] == "status"
