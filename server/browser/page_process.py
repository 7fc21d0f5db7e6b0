"""Parses one HTML page in a process of its own, with limits of CPU time and memory.

HTML parsers take time quadratic in a page's depth and cannot be interrupted, so a hostile page must not
run in the server's process.
"""

import resource
import subprocess
import sys

import msgspec

from server.browser.page import Page, from_html
from server.protocol.decode import decode_as

CPU_SECONDS = 5.0
_MEMORY_BYTES = 1 << 30


class PageUnreadable(Exception):
    """Parsing takes too much time or memory."""


def parse_page(url: str, html: str, seconds: float = CPU_SECONDS) -> Page:
    """`from_html` in a new process. Raises PageUnreadable."""
    message = msgspec.json.encode((url, html.encode("utf-8", "replace").decode(), seconds))
    try:
        output = subprocess.run(
            [sys.executable, "-m", "server.browser.page_process"],
            input=message,
            capture_output=True,
            check=True,
            timeout=4 * seconds,  # wall-clock time; CPU time is limited in the process
        ).stdout
        return decode_as(output, Page)
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
