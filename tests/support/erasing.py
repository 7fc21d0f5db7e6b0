"""What a tenant or a user can have in a database, made over HTTP; whether a marker is left in any table."""

import subprocess
from typing import Any

import httpx
import psycopg

from server.embedded_postgres import binaries
from tests.support.eventually import eventually
from tests.support.server_process import MODEL

Json = dict[str, Any]
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "YPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


class Client:
    """Requests with one key; every request has an id and a user agent with the marker in it."""

    def __init__(self, url: str, key: str, marker: str) -> None:
        names = {"x-request-id": f"req_{marker}", "user-agent": f"agent/{marker}"}
        headers = {"authorization": f"Bearer {key}", **names}
        self._http = httpx.Client(base_url=url, timeout=60, headers=headers)
        self.marker = marker

    def post(self, path: str, **body: Any) -> Json:
        answer = self._http.post(path, json=body, headers=body.pop("headers", None))
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self._http.get(path, params=query)

    def say(self, text: str = "Hi", **more: Any) -> Json:
        """A response, whose input and metadata have the marker."""
        named = {"metadata": {"about": self.marker}, **more}
        return self.post("/responses", model=MODEL, input=f"{self.marker} {text}", **named)

    def close(self) -> None:
        self._http.close()


def fill(client: Client, most: int = 24, **who: Any) -> Json:
    """A response, one that goes on from it, a stored chat, a picture, a conversation; returns their ids."""
    marker, own = client.marker, {"max_output_tokens": most, **who}
    first = client.say(**own)["id"]
    then = client.say("again", previous_response_id=first, **own)["id"]
    conversation = client.post("/conversations", metadata={"of": marker})["id"]
    spoken = client.say("in it", conversation=conversation, **own)["id"]
    chat = client.post(
        "/chat/completions",
        model=MODEL,
        messages=[{"role": "user", "content": marker}],
        store=True,
        metadata={"about": marker},
        max_completion_tokens=most,
        **who,
    )["id"]
    return {"first": first, "then": then, "conversation": conversation, "spoken": spoken, "chat": chat}


def await_end(client: Client, response: str) -> Json:
    """The response, once it has ended."""

    def ended() -> Json:
        found: Json = client.get(f"/responses/{response}").json()
        return found if found["status"] not in ("queued", "in_progress") else {}

    return eventually(ended)


def dumped(database_url: str) -> str:
    """All rows of all tables as text, as pg_dump writes them, without what only tests have."""
    program = binaries.psql_command(database_url)[0][0].removesuffix("psql") + "pg_dump"
    without = ("--exclude-table=watched_statuses", "--data-only")
    return subprocess.run(
        [program, *without, database_url], capture_output=True, text=True, check=True
    ).stdout


def traces(database_url: str, *markers: str) -> list[str]:
    """The lines of a dump in which any of the markers stands, as it is or as a byte string or a UUID."""
    forms = set()
    for marker in markers:
        forms |= {marker, marker.encode().hex()}
        digits = marker.rpartition("_")[2].rpartition("-")[2]
        if len(digits) == 32:
            forms |= {digits, "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))}
    return [
        line[:300]
        for line in dumped(database_url).lower().splitlines()
        if any(form.lower() in line for form in forms)
    ]


def rows_of(database_url: str, tenant: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of a tenant, by table, without those that a server changes on its own."""
    with psycopg.connect(database_url) as connection:
        tables = connection.execute(
            "select table_name from information_schema.columns where column_name = 'tenant'"
            " and table_schema = 'public' and table_name in (select tablename from pg_tables) order by 1"
        ).fetchall()
        query = "select t::text from {table} t where tenant = %s order by 1"
        return {
            table: connection.execute(query.format(table=table).encode(), [tenant]).fetchall()
            for (table,) in tables
            if table
            not in ("rate_buckets", "storage_changes", "spend", "usage_changes", "usage_days", "user_days")
        }
