"""Every time, number and text of a caller is answered, by a page or with an error that names the field."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import pytest

from server.console.pages import history, usage
from server.console.pages.administration import trail
from server.console.routes import PAGES
from tests.acceptance.console.conftest import Operated
from tests.support.rounds import faults_only

EXTREMES = (
    "0000-01-01T00:00",
    "0001-01-01T00:00+14:00",
    "9999-12-31T23:59-14:00",
    "9999-12-31",
    "NaN",
    "1e400",
    str(2**63),
    "1" + "0" * 30,
    "9" * 5000,
    "-1",
    "-0",
    "\u0663",
    "\0",
    "1\n",
    "\U0001f6d1" * 200,
)
ARGUMENTS: Mapping[str, Sequence[str]] = {
    "": (*history.FIELDS, "before"),
    "/history": (*history.FIELDS, "before"),
    "/history.csv": history.FIELDS,
    "/usage": usage.FIELDS,
    "/usage.csv": usage.FIELDS,
    "/responses/{response_id}/events.json": ("after", "limit"),
    "/responses/{response_id}/stream": ("starting_after",),
    "/tenants": ("after",),
    "/keys": ("tenant", "state", "after"),
    "/prices": ("model",),
    "/trail": (*trail.FIELDS, "after"),
    "/sql": ("question", "view"),
    "/compare": ("a", "b"),
    "/playground": ("response",),
}
"""What pages read of their address."""
CURSORS = ("9999-12-31T23:59-14:00/" + "0" * 32, "0001-01-01/" + "0" * 32)
"""Of the history's pages: a time and an id."""


def failures(answers: Iterator[tuple[str, httpx.Response]]) -> list[tuple[str, int]]:
    return [(what, answer.status_code) for what, answer in answers if answer.status_code >= 500]


THIRDS = pytest.mark.parametrize("third", [0, *faults_only(1, 2)])
"""Of the values that each argument takes: another one for the next argument."""


def part_of(third: int, values: Sequence[str], argument: int) -> Sequence[str]:
    return values[(third + argument) % 3 :: 3]


@THIRDS
def test_every_page_answers_every_argument(operated: Operated, third: int) -> None:
    assert ARGUMENTS.keys() <= {page.path for page in PAGES if page.method == "GET"}

    def answers() -> Iterator[tuple[str, httpx.Response]]:
        with operated.visit(operated.admin) as client:
            for path, names in ARGUMENTS.items():
                address = "/console" + path.format(response_id=operated.responses["first"])
                for argument, name in enumerate(names):
                    own = CURSORS if name == "before" else ()
                    for value in (*part_of(third, EXTREMES, argument), *own):
                        yield f"{path} {name}={value[:40]!r}", client.get(address, params={name: value})

    assert failures(answers()) == []


@THIRDS
def test_every_address_of_the_api_answers_every_parameter_and_header(operated: Operated, third: int) -> None:
    document = httpx.get(f"{operated.url}/openapi.json").json()
    ids = {"response_id": operated.responses["first"], "tenant": "acme", "model": "m"}

    def answers() -> Iterator[tuple[str, httpx.Response]]:
        headers = {"authorization": f"Bearer {operated.admin}"}
        with httpx.Client(base_url=operated.url, headers=headers, timeout=30) as client:
            for path, operations in document["paths"].items():
                address = path
                for name in _in_path(path):
                    address = address.replace(f"{{{name}}}", ids.get(name, "0" * 32))
                for argument, parameter in enumerate(operations.get("get", {}).get("parameters", ())):
                    for value in part_of(third, EXTREMES, argument):
                        asked = _with_parameter(parameter, value)
                        if asked is not None:
                            yield f"{path} {parameter['name']}={value[:40]!r}", client.get(address, **asked)

    assert failures(answers()) == []


def test_every_number_of_the_admin_api_is_bounded(operated: Operated) -> None:
    document = httpx.get(f"{operated.url}/openapi.json").json()
    numbers = (-(2**63) - 1, -1, 2**63, 10**30, 1e300, -0.0, "1\n", "NaN", "9" * 40, "\u0663")
    path_ids = {"tenant": "ops", "key_id": operated.reader.split("_")[1]}

    def answers() -> Iterator[tuple[str, httpx.Response]]:
        headers = {"authorization": f"Bearer {operated.admin}"}
        with httpx.Client(base_url=operated.url, headers=headers, timeout=30) as client:
            for path, operations in document["paths"].items():
                body = operations.get("post", {}).get("requestBody")
                if not path.startswith("/admin/") or body is None or "revoke" in path:
                    continue
                kind = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                address = path
                for name in _in_path(path):
                    address = address.replace(f"{{{name}}}", path_ids.get(name, "0" * 32))
                for field in document["components"]["schemas"][kind]["properties"]:
                    for number in numbers:
                        yield f"{path} {field}={number!r}", client.post(address, json={field: number})

    assert failures(answers()) == []
    with httpx.Client(headers={"authorization": f"Bearer {operated.admin}"}) as client:
        answer = client.post(f"{operated.url}/admin/v1/tenants/acme", json={"budget_cost": "1\n"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "budget_cost")


@pytest.mark.parametrize("value", ["0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"])
def test_a_time_of_the_trail_out_of_range_names_the_field(operated: Operated, value: str) -> None:
    with operated.visit(operated.admin) as client:
        answer = client.get("/console/trail", params={"since": value})
        assert (answer.status_code, "since is a time" in answer.text) == (400, True)


def _in_path(path: str) -> list[str]:
    return [part.partition("}")[0].partition(":")[0] for part in path.split("{")[1:]]


def _with_parameter(parameter: Mapping[str, Any], value: str) -> dict[str, Any] | None:
    """The arguments of a request with that value; None where it cannot be sent."""
    if parameter["in"] == "query":
        name = f"{parameter['name']}[k]" if parameter.get("style") == "deepObject" else parameter["name"]
        return {"params": {name: value}}
    if parameter["in"] == "header" and value.isprintable() and value.isascii():
        return {"headers": {parameter["name"]: value}}
    return None
