"""What a server prints once it listens."""

import pytest

from server.process.server_process import ready_lines


@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),  # noqa: S104
        ("::", "http://[::1]:8000"),
        ("10.1.2.3", "http://10.1.2.3:8000"),
    ],
)
def test_first_request_goes_to_an_address_that_this_machine_can_ask(host: str, base: str) -> None:
    ready, request = ready_lines("m", "http", host, 8000, serves_api=True, needs_key=False, console=False)
    assert ready.startswith(f"Ready: m at {base}/v1")
    assert request.startswith(f"  curl {base}/v1/responses -H 'Content-Type: application/json'")


def test_first_request_has_a_key_where_requests_need_one() -> None:
    host = "0.0.0.0"  # noqa: S104
    ready, request = ready_lines("m", "https", host, 8000, serves_api=True, needs_key=True, console=False)
    assert "with a key in OPENAI_API_KEY" in ready
    assert ' -H "Authorization: Bearer $OPENAI_API_KEY"' in request


def test_worker_names_its_health_alone() -> None:
    (line,) = ready_lines("m", "http", "::", 8000, serves_api=False, needs_key=True, console=False)
    assert line == "Ready: a worker for m, health at http://[::1]:8000/health/ready .\n"


def test_the_console_has_a_line_of_its_own_where_there_is_one() -> None:
    *_, line = ready_lines("m", "http", "0.0.0.0", 80, serves_api=True, needs_key=False, console=True)  # noqa: S104
    assert line == "Console: http://127.0.0.1:80/console\n"


def test_console_s_line_names_the_scopes_that_open_it_where_requests_need_a_key() -> None:
    *_, line = ready_lines("m", "http", "127.0.0.1", 80, serves_api=True, needs_key=True, console=True)
    assert line == "Console: http://127.0.0.1:80/console, with a key of the scope admin or metadata\n"
