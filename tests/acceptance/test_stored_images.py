"""Pictures that are stored: kept once, given back where they are asked for, and nowhere by their hash."""

import base64
import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import psycopg
import pytest

from server.http.handlers.responses import IMAGE_URLS
from tests.acceptance.error_object import check_error
from tests.fix_server import SCRIPTED, StartServer, running
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.tenants import make_tenant_key, sent
from tests.support.websocket import WebSocket

Body = dict[str, Any]
WEB = "https://example.com/cat.png"
TOOL: Body = {"type": "function", "name": "look", "parameters": {}, "strict": False}


def png(shade: int) -> bytes:
    """A picture of one grey pixel."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes([0, shade]))),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def url(shade: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(shade)).decode()}"


def image(address: str) -> Body:
    return {"type": "input_image", "image_url": address, "detail": "low"}


def look(*addresses: str) -> Body:
    parts = [{"type": "input_text", "text": "Look:"}, *map(image, addresses)]
    return {"type": "message", "role": "user", "content": parts}


class Client:
    """JSON over HTTP, which notes every answer."""

    def __init__(self, server: ServerProcess, key: str | None = None) -> None:
        self.answers: list[bytes] = []
        self._api = server.api
        self._headers = sent(key)

    def send(self, method: str, path: str, body: Body | None = None) -> httpx.Response:
        address = f"{self._api}/{path}"
        answer = httpx.request(method, address, json=body, headers=self._headers, timeout=60)
        self.answers.append(answer.content)
        return answer

    def get(self, path: str) -> Any:
        answer = self.send("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, **body: Any) -> Any:
        answer = self.send("POST", path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ask(self, *items: Body, **more: Any) -> str:
        made: str = self.post(
            "responses", **{"model": MODEL, "input": list(items), "max_output_tokens": 2, **more}
        )["id"]
        return made

    def urls(self, path: str) -> list[str | None]:
        """The image URLs of a page of items, in order."""
        joint = "&" if "?" in path else "?"
        items = self.get(f"{path}{joint}order=asc")["data"]
        return [one for item in items for one in image_urls(item)]


def image_urls(item: Body) -> list[str | None]:
    parts = item.get("content") or item.get("output") or []
    return [part["image_url"] for part in parts if isinstance(part, dict) and part["type"] == "input_image"]


@pytest.fixture(scope="module")
def server(module_database: str) -> Iterator[ServerProcess]:
    yield from running(module_database, SCRIPTED)


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return Client(server)


def stored(database_url: str, tenant: str = "default") -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("select count(*) from images where tenant = %s", [tenant]).fetchone()
    assert row is not None
    return int(row[0])


def test_input_items_have_image_urls_only_if_they_are_included(client: Client) -> None:
    sent_urls = [url(1), WEB, url(2), url(1)]
    output = {"type": "function_call_output", "call_id": "c", "output": [image(url(3))]}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    path = f"responses/{client.ask(look(*sent_urls), call, output, look(WEB), tools=[TOOL])}/input_items"
    whole = [*sent_urls, url(3), WEB]
    assert client.urls(path) == [None] * 6
    assert client.urls(f"{path}?include=file_search_call.results") == [None] * 6
    assert client.urls(f"{path}?include={IMAGE_URLS}") == whole
    assert client.urls(f"{path}?include[]={IMAGE_URLS}&include[]=file_search_call.results") == whole
    assert client.get(path)["data"][0]["content"][1]["detail"] == "low"


def test_a_conversations_items_always_have_their_image_urls(client: Client) -> None:
    made = client.post("conversations", items=[look(url(10))])["id"]
    path = f"conversations/{made}/items"
    added = client.post(path, items=[look(url(11), WEB), look("data:image/png;base64,%%")])["data"]
    assert [image_urls(item) for item in added] == [[url(11), WEB], ["data:image/png;base64,%%"]]
    client.ask(look(url(12)), conversation=made)
    expected = [url(10), url(11), WEB, "data:image/png;base64,%%", url(12)]
    assert client.urls(path) == expected
    assert client.urls(f"{path}?limit=2") == expected[:3]
    assert image_urls(client.get(f"{path}/{added[0]['id']}")) == [url(11), WEB]
    again = client.post("conversations", items=client.get(f"{path}?order=asc")["data"])["id"]
    assert client.urls(f"conversations/{again}/items") == expected


def test_a_stored_chats_messages_have_their_pictures(client: Client) -> None:
    def parts(*addresses: str) -> list[Body]:
        text = {"type": "text", "text": "Look:"}
        return [text, *({"type": "image_url", "image_url": {"url": one}} for one in addresses)]

    messages = [{"role": "user", "content": parts(url(20), WEB)}, {"role": "user", "content": parts(url(21))}]
    chat = {"model": MODEL, "messages": messages, "store": True, "max_completion_tokens": 2, "n": 2}
    made = client.post("chat/completions", **chat)["id"]
    path = f"chat/completions/{made}/messages"

    def listed() -> list[Body] | None:
        answer = client.send("GET", f"{path}?order=asc")
        return answer.json()["data"] if answer.status_code == 200 else None

    data = eventually(listed)
    assert data is not None
    given = [part["image_url"]["url"] for one in data for part in one["content_parts"] if "image_url" in part]
    assert given == [url(20), WEB, url(21)]
    (last,) = client.get(f"{path}?order=asc&after={data[0]['id']}")["data"]
    assert last["content_parts"][1]["image_url"]["url"] == url(21)


def test_a_reference_and_the_same_bytes_sent_again_are_the_same_picture(
    client: Client, module_database: str
) -> None:
    before = stored(module_database)
    first = client.ask(look(url(30)))
    item = client.get(f"responses/{first}/input_items")["data"][0]["id"]
    spaced = url(30).replace("base64,", "base64,\n ").replace("image/png", "IMAGE/PNG")
    second = client.ask({"type": "item_reference", "id": item}, look(spaced))
    assert client.urls(f"responses/{second}/input_items?include={IMAGE_URLS}") == [url(30)] * 2
    assert stored(module_database) == before + 1
    conversation = client.post("conversations", items=[{"type": "item_reference", "id": item}])["id"]
    assert client.urls(f"conversations/{conversation}/items") == [url(30)]
    for response in (first, second):
        assert client.send("DELETE", f"responses/{response}").status_code == 200
    assert client.urls(f"conversations/{conversation}/items") == [url(30)]
    check_error(client.send("GET", f"responses/{second}/input_items"), 404, "invalid_request_error")


def test_a_picture_is_gone_soon_after_the_last_item(start_server: StartServer, database_url: str) -> None:
    client = Client(start_server(purge_seconds=0.2))
    made = [client.ask(look(url(40))) for _ in range(2)]
    assert stored(database_url) == 1
    client.send("DELETE", f"responses/{made[0]}")
    client.ask(look(url(41)), background=True, store=False)
    client.send("DELETE", f"responses/{made[1]}")
    eventually(lambda: stored(database_url) == 1, within=60)


def visit_responses(client: Client) -> str:
    """Asks every address of responses with pictures; returns one that goes on from another."""
    first = client.ask(look(url(51), WEB))
    second = client.ask(look(url(51)), previous_response_id=first)
    background = client.ask(look(url(52)), background=True)
    for response in (first, second, background):
        client.get(f"responses/{response}")
        client.get(f"responses/{response}/input_items")
        client.get(f"responses/{response}/input_items?include={IMAGE_URLS}")
        client.send("GET", f"responses/{response}?stream=true")
        client.send("POST", f"responses/{response}/cancel")
    streamed = {"model": MODEL, "input": "Go on.", "previous_response_id": second, "stream": True}
    client.send("POST", "responses", {**streamed, "enable_response_messages": True})
    client.get("responses")
    client.post("responses/input_tokens", model=MODEL, previous_response_id=second)
    compacted = client.ask({"type": "compaction_trigger"}, previous_response_id=second)
    client.get(f"responses/{compacted}")
    client.ask(look(url(52)), previous_response_id=compacted)
    return second


def visit_conversations(client: Client) -> None:
    made = client.post("conversations", items=[look(url(50))])["id"]
    client.post(f"conversations/{made}/items", items=[look(url(53), WEB)])
    client.ask(look(url(53)), conversation=made)
    item = client.get(f"conversations/{made}/items")["data"][0]["id"]
    client.get(f"conversations/{made}/items/{item}")
    client.get(f"conversations/{made}")
    client.send("DELETE", f"conversations/{made}/items/{item}")
    client.send("DELETE", f"conversations/{made}")


def visit_chats(client: Client) -> None:
    part = {"type": "image_url", "image_url": {"url": url(50)}}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": [part]}], "max_completion_tokens": 2}
    made = client.post("chat/completions", **chat, store=True)["id"]
    client.send("POST", "chat/completions", {**chat, "stream": True})
    eventually(lambda: client.send("GET", f"chat/completions/{made}").status_code == 200)
    client.get(f"chat/completions/{made}/messages")
    client.get("chat/completions")


def visit_websocket(client: Client, server: ServerProcess, response: str) -> None:
    for stored in (True, False):
        with WebSocket(server.url) as socket:
            told = socket.turn({"model": MODEL, "input": [look(url(50))], "previous_response_id": response})
            name = told[-1]["response"]["id"]
            told += socket.turn({"model": MODEL, "input": [look(WEB)], "store": stored})
            told += socket.turn({"model": MODEL, "input": "Go on.", "previous_response_id": name})
        client.answers.append(msgspec.json.encode(told))


def test_the_hash_of_a_picture_is_told_nowhere(client: Client, server: ServerProcess) -> None:
    response = visit_responses(client)
    visit_conversations(client)
    visit_chats(client)
    visit_websocket(client, server, response)
    document = client.get("../openapi.json")["components"]["schemas"]
    assert set(document["InputImage"]["properties"]) == {"type", "image_url", "file_id", "detail"}
    assert len(client.answers) > 35
    assert [answer for answer in client.answers if b'"content":"sha256:' in answer] == []
    assert [answer for answer in client.answers if b'"content":"data:' in answer] == []
    digests = [hashlib.sha256(png(shade)).hexdigest().encode() for shade in range(50, 54)]
    assert [digest for digest in digests if digest in b"".join(client.answers)] == []


def test_a_compaction_gives_the_pictures_of_what_it_retains(client: Client) -> None:
    first = client.ask(look(url(55), WEB))
    second = client.ask(look(url(56)), previous_response_id=first)
    told = client.post("responses/compact", model=MODEL, previous_response_id=second)
    expected = [url(55), WEB, url(56)]
    assert [one for item in told["output"] for one in image_urls(item)] == expected
    assert b"sha256:" not in client.answers[-1]
    again = client.ask(*told["output"])
    assert client.urls(f"responses/{again}/input_items?include={IMAGE_URLS}") == expected


def test_content_that_a_client_sends_is_ignored(client: Client) -> None:
    client.ask(look(url(60)))
    part = {**image(WEB), "content": f"sha256:{hashlib.sha256(png(60)).hexdigest()}"}
    made = client.ask({"role": "user", "content": [part]})
    (item,) = client.get(f"responses/{made}/input_items?include={IMAGE_URLS}")["data"]
    assert item["content"] == [{**image(WEB), "file_id": None}]


def test_tenants_share_no_picture(keyed_server: ServerProcess, keyed_database: str) -> None:
    names = ("sees", "sees-too")
    one, two = (Client(keyed_server, make_tenant_key(keyed_database, name)) for name in names)
    made = one.ask(look(url(70)))
    two.ask(look(url(70)))
    assert [stored(keyed_database, name) for name in names] == [1, 1]
    one.send("DELETE", f"responses/{made}")
    item = {"type": "item_reference", "id": f"msg_{made[5:]}i0"}
    refused = two.send("POST", "responses", {"model": MODEL, "input": [item]})
    check_error(refused, 404, "invalid_request_error")


def test_items_of_an_earlier_release_are_read_as_before(start_server: StartServer, database_url: str) -> None:
    client = Client(start_server())
    made = client.ask(look(url(80)))
    conversation = client.post("conversations", items=[look(url(81))])["id"]
    with psycopg.connect(database_url) as connection:
        for table, owner, name, whole in (
            ("items", "response_id", made, url(80)),
            ("conversation_items", "conversation_id", conversation, url(81)),
        ):
            hexadecimal = name.partition("_")[2]
            connection.execute(
                f"update {table} set for_model = null, payload = regexp_replace(payload::text,"  # noqa: S608
                f""" '"image_url":null(.*),"content":"sha256:[^"]*"', '"image_url":"{whole}"\\1')::json"""
                f" where {owner} = %s and payload::text like '%%sha256%%'",
                [hexadecimal],
            )
        connection.execute("delete from item_images")
        connection.execute("delete from images")
    path = f"responses/{made}/input_items"
    assert client.urls(path) == [None]
    assert client.urls(f"{path}?include={IMAGE_URLS}") == [url(80)]
    assert client.urls(f"conversations/{conversation}/items") == [url(81)]
    following = client.ask({"type": "item_reference", "id": f"msg_{made[5:]}i0"})
    assert client.urls(f"responses/{following}/input_items?include={IMAGE_URLS}") == [url(80)]
