"""Middleware CorsAndSlashes: CORS headers and preflights for configured origins; trailing slashes removed."""

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server.configuration.origins import AllowedOrigins

_OF_RATES = ("limit", "remaining", "reset")
_RATES = [f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in _OF_RATES]
_EXPOSED = ", ".join(["x-request-id", "retry-after", "x-should-retry", *_RATES])
"""Response headers that pages may read beside CORS' safelisted ones."""
_METHODS = "GET, POST, DELETE, OPTIONS"
_MAX_AGE_S = 600
"""Seconds for which a browser may cache a preflight; Chromium caches at most 7200."""


class CorsAndSlashes:
    """Paths are rewritten: behind a proxy that ends TLS, Starlette's redirects would point to http://."""

    def __init__(self, app: ASGIApp, origins: AllowedOrigins) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        path = scope["path"].replace("\0", "\N{REPLACEMENT CHARACTER}")  # which no stored text has as a NUL
        scope["path"] = path.rstrip("/") or "/"
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if scope["type"] != "http" or origin is None or origin not in self._origins:
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await self._preflight(origin, headers, scope["state"]["request_id"])(scope, receive, send)
        else:
            exposed = {"access-control-expose-headers": _EXPOSED}
            scope["state"]["cors_headers"] = self._allowed(origin) | exposed
            await self._app(scope, receive, send)

    def _preflight(self, origin: str, asked: Headers, request_id: str) -> Response:
        """The answer to a preflight request: every header is allowed. The key comes with the real request."""
        names = asked.get("access-control-request-headers", "*")
        headers = {**self._allowed(origin), "x-request-id": request_id}
        headers |= {"access-control-allow-methods": _METHODS, "access-control-allow-headers": names}
        headers["access-control-max-age"] = str(_MAX_AGE_S)
        if "access-control-request-private-network" in asked:
            headers["access-control-allow-private-network"] = "true"
        return Response(status_code=204, headers=headers)

    def _allowed(self, origin: str) -> dict[str, str]:
        if self._origins.any:
            return {"access-control-allow-origin": "*"}
        return {"access-control-allow-origin": origin, "vary": "Origin"}
