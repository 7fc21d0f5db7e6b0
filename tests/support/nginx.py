"""nginx as a process, with the documented file `deploy/nginx/holdfast.conf` or another one."""

import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.eventually import eventually

FILE = Path(__file__).resolve().parents[2] / "deploy" / "nginx" / "holdfast.conf"
UNPACKED = Path(__file__).resolve().parents[2] / ".clients" / "nginx" / "usr" / "sbin" / "nginx"
"""Where `make clients` puts it on a machine without one."""


def program() -> str | None:
    """The path of nginx; None if there is none here."""
    return shutil.which("nginx") or (str(UNPACKED) if UNPACKED.exists() else None)


def documented_server(
    port: int, upstreams: Sequence[int], certificate: tuple[Path, Path] | None = None
) -> str:
    """The documented file for these ports; without a certificate it listens without TLS."""
    text = FILE.read_text(encoding="utf-8")
    servers = "".join(f"    server 127.0.0.1:{upstream};\n" for upstream in upstreams)
    text = re.sub(r"    server 127\.0\.0\.1:8000;.*\n", servers, text)
    if certificate is None:
        text = re.sub(r"    ssl_.*\n", "", text).replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    else:
        text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;")
        text = text.replace("/etc/ssl/holdfast.pem", str(certificate[0]))
        text = text.replace("/etc/ssl/private/holdfast.key", str(certificate[1]))
    return text


class Nginx:
    """One nginx, whose files are all in `folder`."""

    def __init__(self, folder: Path, port: int, servers: str) -> None:
        self._folder = folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        folders = " ".join(
            f"{kind}_temp_path {folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        main = f"daemon off; pid {folder}/pid; error_log {folder}/error.log; user root; events {{}}"
        (folder / "nginx.conf").write_text(
            f"{main}\nhttp {{ access_log off; {folders}\n{servers}\n}}\n", encoding="utf-8"
        )

    def start(self) -> None:
        """Starts it, if it does not run, and waits until it accepts connections."""
        if self._process is not None:
            return
        found = program()
        assert found is not None, "there is no nginx here"
        arguments = [found, "-e", f"{self._folder}/error.log", "-p", f"{self._folder}"]
        self._process = subprocess.Popen([*arguments, "-c", f"{self._folder}/nginx.conf"])
        eventually(self._accepts, within=30)

    def stop(self) -> None:
        """Ends it, if it runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def _accepts(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "error.log").read_text(errors="replace")
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
            return True
        return False
