"""A browser without JavaScript: signs in, opens pages, sends their forms."""

import re
from types import TracebackType
from typing import Self

import httpx

from tests.support.server_process import ServerProcess

_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


class Console:
    """The console of a server, as somebody with that key."""

    def __init__(self, server: ServerProcess, key: str) -> None:
        self.client = httpx.Client(base_url=server.url, timeout=60)
        assert self.client.post("/console/sign-in", data={"key": key}).status_code == 303
        self._token = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.client.close()

    def get(self, path: str, **arguments: str) -> httpx.Response:
        answer = self.client.get(path, params=arguments or None)
        if (found := _TOKEN.search(answer.text)) is not None:
            self._token = found[1]
        return answer

    def post(self, path: str, fields: dict[str, str] | None = None) -> httpx.Response:
        """Sends a form with the token of the page that was opened last; follows no redirect."""
        return self.client.post(path, data={"form_token": self._token, **(fields or {})})
