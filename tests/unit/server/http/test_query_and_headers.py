import pytest

from server.errors import UnsupportedMediaType
from server.http.query_and_headers import require_json


@pytest.mark.parametrize(
    "sent",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/problem+json",
        "application/vnd.api+json; charset=utf-8",
    ],
)
def test_body_that_says_that_it_is_json_is_read(sent: str) -> None:
    require_json({"content-type": sent}, b"{}")


@pytest.mark.parametrize(
    "sent",
    [
        None,
        "",
        "text/plain",
        "text/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
        "text/plain; a=application/json",
        "application/jsonp",
        "json",
    ],
)
def test_body_that_says_something_else_is_refused_with_the_header_to_send(sent: str | None) -> None:
    headers = {} if sent is None else {"content-type": sent}
    with pytest.raises(UnsupportedMediaType, match="`Content-Type: application/json`"):
        require_json(headers, b"{}")
    require_json(headers, b"")
