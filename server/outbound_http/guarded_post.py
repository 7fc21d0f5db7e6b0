"""`post`: one POST through the SSRF guard, of whose answer the status and `Retry-After` are read alone.

The connection is closed after the head of the answer, so a body of any size costs nothing; the head is
bounded by httpcore, at 100 KiB. Redirects are not followed.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import httpcore
import httpx

from server.outbound_http.allowed_addresses import AllowedAddresses, check_url, host_and_port, read_url
from server.outbound_http.guarded_http import (
    CheckedNetwork,
    Lookup,
    Unreachable,
    look_up,
    trusted_authorities,
)


@dataclass(frozen=True, slots=True)
class PostResult:
    """The head of an answer."""

    status: int
    retry_after: str | None
    """The header's text."""


def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    allowed: AllowedAddresses,
    seconds: float,
    lookup: Lookup = look_up,
) -> PostResult:
    """POSTs to a URL on a connection of its own; blocks for at most `seconds`.

    Raises Refused if the URL or an address of its host is not allowed, and Unreachable.
    """
    try:
        return asyncio.run(_post(read_url(url), headers, body, allowed, seconds, lookup))
    except (httpcore.TimeoutException, TimeoutError):
        raise Unreachable(f"There was no answer within {seconds:g} seconds.") from None
    except httpcore.ConnectError:
        raise Unreachable("It cannot be connected to, or has no valid certificate.") from None
    except (httpcore.NetworkError, OSError):
        raise Unreachable("The connection was lost before an answer.") from None
    except httpcore.ProtocolError:
        raise Unreachable("The answer is not HTTP.") from None


async def _post(
    url: httpx.URL,
    headers: Mapping[str, str],
    body: bytes,
    allowed: AllowedAddresses,
    seconds: float,
    lookup: Lookup,
) -> PostResult:
    check_url(url, allowed)
    host, port = host_and_port(url)
    target = httpcore.URL(scheme=url.raw_scheme, host=host.encode("ascii"), port=port, target=url.raw_path)
    sent = [(b"host", url.netloc), (b"content-length", str(len(body)).encode())]
    sent += [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
    sent.append((b"connection", b"close"))
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
    context, network = trusted_authorities(), CheckedNetwork(allowed, lookup)
    async with (
        asyncio.timeout(seconds),
        httpcore.AsyncConnectionPool(ssl_context=context, network_backend=network) as pool,
        pool.stream("POST", target, headers=sent, content=body, extensions={"timeout": timeouts}) as answer,
    ):
        received = httpx.Headers(answer.headers)
        return PostResult(answer.status, received.get("retry-after"))
