"""A model that reads pictures answers about them by every API, after other turns, and after a crash."""

import base64
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import psycopg
import pytest
from openai import OpenAI
from PIL import Image

from demo.vision.pictures import Picture, random_picture
from demo.vision.questions import Sight
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from tests.fix_postgres import temporary_database
from tests.fix_server import StartServerOn, running
from tests.support.eventually import eventually
from tests.support.hostile_pictures import READABLE, UNREADABLE, encoded
from tests.support.rounds import faults_only
from tests.support.server_process import REPOSITORY, ServerProcess, run_command, vision_engine
from tests.support.web_server import Page, WebServer
from tests.support.websocket import WebSocket

MODEL = "holdfast-vision"
SETTINGS: dict[str, object] = {"model": REPOSITORY / "demo" / MODEL, **vision_engine()}
QUESTION = "What do you see?"
STORY = "Tell me a story about it."
"""Its answer has several sentences, so that a server can die within it."""
FORMATS = ("PNG", "JPEG", "WEBP")
SEED = 20_271


class Case(NamedTuple):
    """A fresh picture as a file, and what is to be said of it."""

    url: str
    answer: str
    colour: str


def fresh_cases(seed: int, count: int) -> list[Case]:
    chooser = random.Random(seed)
    return [as_case(random_picture(chooser), FORMATS[number % len(FORMATS)]) for number in range(count)]


def as_case(picture: Picture, file_format: str) -> Case:
    sight = Sight(picture.colour, picture.thing)
    return Case(
        data_url(picture.encoded(file_format), f"image/{file_format.lower()}"),
        sight.described(),
        sight.coloured(),
    )


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def question(url: str, text: str = QUESTION) -> list[dict[str, Any]]:
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": text}]
    return [{"role": "user", "content": parts}]


def chat_question(url: str, text: str = QUESTION) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with WebServer({}) as server:
        yield server


@pytest.fixture(scope="module")
def database(cluster: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    with temporary_database(cluster, "pictures", template=template_database) as name:
        yield cluster.url_of(name)


@pytest.fixture(scope="module")
def server(database: str, web: WebServer) -> Iterator[ServerProcess]:
    yield from running(database, {**SETTINGS, "image_hosts": f"http://{web.host}", "purge_seconds": 0.2})


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> OpenAI:
    return OpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=120)


def in_full(client: OpenAI, case: Case) -> str:
    return client.responses.create(model=MODEL, input=question(case.url)).output_text  # type: ignore[arg-type]


def streamed(client: OpenAI, case: Case) -> str:
    with client.responses.stream(model=MODEL, input=question(case.url)) as stream:  # type: ignore[arg-type]
        return stream.get_final_response().output_text


def in_the_background(client: OpenAI, case: Case) -> str:
    response = client.responses.create(model=MODEL, input=question(case.url), background=True)  # type: ignore[arg-type]
    eventually(lambda: client.responses.retrieve(response.id).status == "completed")
    return client.responses.retrieve(response.id).output_text


def unstored(client: OpenAI, case: Case) -> str:
    return client.responses.create(model=MODEL, input=question(case.url), store=False).output_text  # type: ignore[arg-type]


def by_chat(client: OpenAI, case: Case) -> str:
    completion = client.chat.completions.create(model=MODEL, messages=chat_question(case.url))  # type: ignore[arg-type]
    return completion.choices[0].message.content or ""


def by_chat_stream(client: OpenAI, case: Case) -> str:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=chat_question(case.url),  # type: ignore[arg-type]
        stream=True,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)  # type: ignore[union-attr]


def in_a_conversation(client: OpenAI, case: Case) -> str:
    conversation = client.conversations.create(items=question(case.url, "Look at this."))  # type: ignore[arg-type]
    return client.responses.create(model=MODEL, input=QUESTION, conversation=conversation.id).output_text


def two_turns_later(client: OpenAI, case: Case) -> str:
    first = client.responses.create(model=MODEL, input=question(case.url))  # type: ignore[arg-type]
    second = client.responses.create(model=MODEL, input="Thanks!", previous_response_id=first.id)
    third = client.responses.create(model=MODEL, input=QUESTION, previous_response_id=second.id)
    return third.output_text


def by_websocket(client: OpenAI, case: Case) -> str:
    with WebSocket(str(client.base_url).removesuffix("/v1/")) as socket:
        first = socket.turn({"model": MODEL, "input": question(case.url), "store": False})
        previous = first[-1]["response"]["id"]
        more = {"model": MODEL, "input": QUESTION, "previous_response_id": previous, "store": False}
        second = socket.turn(more)[-1]["response"]
        return str(second["output"][0]["content"][0]["text"])


WAYS: tuple[Callable[[OpenAI, Case], str], ...] = (
    in_full,
    streamed,
    in_the_background,
    unstored,
    by_chat,
    by_chat_stream,
    in_a_conversation,
    two_turns_later,
    by_websocket,
)


@pytest.mark.parametrize(("count", "enough"), [(21, 18), *faults_only((100, 95))])
def test_of_many_fresh_pictures_nearly_all_are_named_right_by_every_way(
    client: OpenAI, count: int, enough: int
) -> None:
    cases = fresh_cases(SEED, count)

    def ask(number: int) -> bool:
        return WAYS[number % len(WAYS)](client, cases[number]) == cases[number].answer

    with ThreadPoolExecutor(4) as pool:
        right = list(pool.map(ask, range(count)))
    by_way = {way.__name__: right[number :: len(WAYS)].count(True) for number, way in enumerate(WAYS)}
    assert sum(right) >= enough, by_way
    assert min(by_way.values()) > 0, by_way


def test_a_picture_from_an_allowed_server_is_seen_and_its_url_given_back(
    client: OpenAI, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case, *_) = fresh_cases(1, 1)
    content = base64.b64decode(case.url.partition(",")[2])
    monkeypatch.setitem(web.pages, "/it.png", Page(content, "image/png"))
    url = f"http://{web.host}/it.png"
    response = client.responses.create(model=MODEL, input=question(url))  # type: ignore[arg-type]
    assert response.output_text == case.answer
    monkeypatch.delitem(web.pages, "/it.png")
    later = client.responses.create(model=MODEL, input="And the colour?", previous_response_id=response.id)
    assert later.output_text == case.colour
    assert image_urls(client, response.id) == [url]


def image_urls(client: OpenAI, response: str) -> list[str | None]:
    items = client.responses.input_items.list(response, include=["message.input_image.image_url"])
    return [part.image_url for item in items for part in item.content if part.type == "input_image"]  # type: ignore[union-attr]


def test_a_picture_is_stored_once_and_given_back_as_it_came(client: OpenAI, database: str) -> None:
    (case, *_) = fresh_cases(2, 1)
    ids = [client.responses.create(model=MODEL, input=question(case.url)).id for _ in range(2)]  # type: ignore[arg-type]
    assert [image_urls(client, response) for response in ids] == [[case.url]] * 2
    listed = client.responses.input_items.list(ids[0]).data[0]
    assert listed.content[0].image_url is None  # type: ignore[union-attr,index]
    content = base64.b64decode(case.url.partition(",")[2])
    with psycopg.connect(database, autocommit=True) as connection:
        query = "select count(*) from images where digest = sha256(%s)"
        assert connection.execute(query, (content,)).fetchone() == (1,)
        client.responses.delete(ids[0])
        assert connection.execute(query, (content,)).fetchone() == (1,)
        client.responses.delete(ids[1])
        eventually(lambda: connection.execute(query, (content,)).fetchone() == (0,))


def test_pictures_are_counted_as_input_tokens_and_cached_with_their_prefix(client: OpenAI) -> None:
    (case, *_) = fresh_cases(3, 1)
    bare = client.responses.input_tokens.count(model=MODEL, input=QUESTION).input_tokens
    counted = client.responses.input_tokens.count(model=MODEL, input=question(case.url)).input_tokens  # type: ignore[arg-type]
    response = client.responses.create(model=MODEL, input=question(case.url))  # type: ignore[arg-type]
    assert response.usage is not None
    assert response.usage.input_tokens == counted
    assert counted > bare + 16
    again = client.responses.create(model=MODEL, input=question(case.url))  # type: ignore[arg-type]
    assert again.usage is not None
    assert again.usage.input_tokens_details.cached_tokens > bare
    assert again.output_text == response.output_text


@pytest.mark.parametrize("where", ["recorder.committed:3", *faults_only("accept.committed", "end.written")])
def test_an_answer_about_a_picture_goes_on_after_kill_9_with_the_same_text(
    database_url: str, start_server_on: StartServerOn, client: OpenAI, where: str
) -> None:
    (case, *_) = fresh_cases(4, 1)
    told = question(case.url, STORY)
    whole = client.responses.create(model=MODEL, input=told).output_text  # type: ignore[arg-type]
    assert len(whole) > 100
    first = start_server_on(database_url, **SETTINGS, lease_seconds=2, crash_at=where)
    body = {"model": MODEL, "input": told, "background": True}
    try:
        response = httpx.post(f"{first.api}/responses", json=body, timeout=60).json()["id"]
    except httpx.HTTPError:
        response = None
    assert first.wait() == 137
    second = start_server_on(database_url, **SETTINGS, lease_seconds=2)
    if response is None:
        with psycopg.connect(database_url) as connection:
            row = connection.execute("select id from responses").fetchone()
        assert row is not None
        response = f"resp_{row[0].hex}"
    again = OpenAI(base_url=second.api, api_key="none", max_retries=0)
    eventually(lambda: again.responses.retrieve(response).status == "completed", within=60)
    assert again.responses.retrieve(response).output_text == whole


def test_two_tenants_with_the_same_picture_share_nothing_that_can_be_counted(
    database_url: str, start_server_on: StartServerOn
) -> None:
    keys = []
    for tenant in ("one", "two"):
        made = run_command("keys", "create", "--tenant", tenant, database_url=database_url)
        keys.append(made.stdout.split()[-1])
    server = start_server_on(database_url, **SETTINGS)
    (case, *_) = fresh_cases(5, 1)
    cached = []
    for key in (keys[0], keys[0], keys[1]):
        client = OpenAI(base_url=server.api, api_key=key, max_retries=0)
        response = client.responses.create(model=MODEL, input=question(case.url))  # type: ignore[arg-type]
        assert response.usage is not None
        cached.append(response.usage.input_tokens_details.cached_tokens)
    assert cached[1] > 0
    assert cached[0] == cached[2] == 0
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("select tenant from images order by tenant").fetchall()
    assert rows == [("one",), ("two",)]


@pytest.mark.faults
def test_hostile_pictures_are_refused_by_name_and_delay_nobody(server: ServerProcess) -> None:
    slowest = 0.0
    done = threading.Event()
    readable = {name: make for name, make in READABLE.items() if "EXIF" not in name}

    def watch() -> None:
        nonlocal slowest
        with httpx.Client(timeout=30) as http:
            while not done.wait(0.01):
                began = time.monotonic()
                assert http.get(f"{server.url}/health/live").status_code == 200
                slowest = max(slowest, time.monotonic() - began)

    with ThreadPoolExecutor(5) as pool:
        watching = pool.submit(watch)
        files = {name: make() for name, (make, _) in UNREADABLE.items()} | {
            name: make() for name, make in readable.items()
        }
        answers = dict(
            zip(files, pool.map(lambda content: ask(server, content), files.values()), strict=True)
        )
        done.set()
        watching.result()
    statuses = {name: answer.status_code for name, answer in answers.items()}
    assert statuses == dict.fromkeys(UNREADABLE, 400) | dict.fromkeys(readable, 200)
    params = {answers[name].json()["error"]["param"] for name in UNREADABLE}
    assert params == {"input[0].content[0].image_url"}
    assert slowest < 2.0, "beside other tests on a busy machine; `make faults` tries each alone"


def ask(server: ServerProcess, content: bytes) -> httpx.Response:
    body = {"model": MODEL, "input": question(data_url(content)), "max_output_tokens": 1, "store": False}
    return httpx.post(f"{server.api}/responses", json=body, timeout=60)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/private.png",
        "http://169.254.169.254/latest/meta-data",
        "https://example.com/public.png",
        "file:///etc/passwd",
        "ftp://example.com/a.png",
    ],
)
def test_a_url_that_is_not_allowed_is_refused_by_every_api(server: ServerProcess, url: str) -> None:
    asked = {
        "responses": ({"input": question(url)}, "input[0].content[0].image_url"),
        "chat/completions": ({"messages": chat_question(url)}, "messages[0].content[0].image_url.url"),
        "conversations": ({"items": question(url)}, "items[0].content[0].image_url"),
        "responses/input_tokens": ({"input": question(url)}, "input[0].content[0].image_url"),
    }
    for path, (body, param) in asked.items():
        answer = httpx.post(f"{server.api}/{path}", json={"model": MODEL, **body}, timeout=60)
        assert (path, answer.status_code, answer.json()["error"]["param"]) == (path, 400, param)


def test_pictures_of_a_tools_output_are_seen(client: OpenAI) -> None:
    (case, *_) = fresh_cases(6, 1)
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    parts = [{"type": "input_image", "image_url": case.url}]
    output = {"type": "function_call_output", "call_id": "call_1", "output": parts}
    asked = [{"role": "user", "content": "Look."}, call, output]
    with_it = client.responses.input_tokens.count(model=MODEL, input=asked).input_tokens  # type: ignore[arg-type]
    without = client.responses.input_tokens.count(
        model=MODEL,
        input=[*asked[:2], {**output, "output": "Seen."}],  # type: ignore[list-item]
    ).input_tokens
    assert with_it > without + 16


def test_a_picture_of_one_pixel_and_a_large_one_are_read(server: ServerProcess) -> None:
    for size in ((1, 1), (1, 90), (3000, 2000)):
        assert ask(server, encoded(Image.new("RGB", size, "red"))).status_code == 200


def test_codex_is_told_that_the_model_reads_pictures(server: ServerProcess) -> None:
    (model,) = httpx.get(f"{server.api}/models?client_version=0.169.0").json()["models"]
    assert model["input_modalities"] == ["text", "image"]
