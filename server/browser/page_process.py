"""Reads one HTML page in a process that ends with it, so that a page made to be slow or large harms no other.

Parsers of HTML take time that grows with the square of a page's depth, and cannot be interrupted.
"""

import resource
import subprocess
import sys

import msgspec

from server.browser.page import Page, from_html
from server.protocol.typed import decode_as

CPU_SECONDS = 5.0
_MEMORY_BYTES = 1 << 30


class PageUnreadable(Exception):
    """The page takes too long, or too much memory, to be read."""


def parse_page(url: str, html: str, seconds: float = CPU_SECONDS) -> Page:
    """What `from_html` gives. Raises Unreadable."""
    given = msgspec.json.encode((url, html.encode("utf-8", "replace").decode(), seconds))
    try:
        told = subprocess.run(
            [sys.executable, "-m", "server.browser.page_process"],
            input=given,
            capture_output=True,
            check=True,
            timeout=4 * seconds,  # by the clock, on a busy machine
        ).stdout
        return decode_as(told, Page)
    except (subprocess.SubprocessError, msgspec.DecodeError):
        raise PageUnreadable("The page takes too long to be read.") from None


def main() -> None:
    url, html, seconds = decode_as(sys.stdin.buffer.read(), tuple[str, str, float])
    cpu = max(1, round(seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.buffer.write(msgspec.json.encode(from_html(url, html)))


if __name__ == "__main__":
    main()
