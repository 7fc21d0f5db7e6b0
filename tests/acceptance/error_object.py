"""OpenAI's error object, as every answer that is not 2xx must carry it."""

from typing import Any

import httpx

TELLTALES = ("Traceback", "/server/", "/site-packages/", "psycopg", "sqlalchemy", "msgspec", ".py", "0x7f")
"""Words about our insides, which are nobody's business."""


def check_error(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The error, if it is exactly OpenAI's object with this status and type."""
    assert answer.status_code == status, answer.text[:300]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == kind
    assert isinstance(error["message"], str)
    assert error["message"]
    assert len(answer.content) < 1000
    assert not [word for word in TELLTALES if word in answer.text]
    return error
