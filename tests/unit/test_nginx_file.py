"""The documented nginx file, read without nginx: what it keeps inside, and what it tells the server."""

import pytest

from tests.support.nginx import FILE


def _blocks(text: str) -> dict[str, list[str]]:
    """The directives of each location, by its prefix."""
    lines = " ".join(line.partition("#")[0] for line in text.splitlines())
    blocks = [part.partition("}")[0].partition("{") for part in lines.split("location ")[1:]]
    return {name.strip(): [" ".join(line.split()) for line in body.split(";")] for name, _, body in blocks}


@pytest.mark.parametrize("path", ["/metrics", "/admin/", "/console"])
def test_what_is_the_operators_is_not_passed_on(path: str) -> None:
    assert _blocks(FILE.read_text())[path][0] == "return 404"


def test_the_server_is_told_whether_the_client_speaks_tls() -> None:
    assert "proxy_set_header X-Forwarded-Proto $scheme" in _blocks(FILE.read_text())["/"]
