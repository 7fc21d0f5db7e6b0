"""`ask_server`: which engine answers at a URL, and which model it runs."""

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from server.configuration.setting_groups import EngineName
from server.errors import ConfigError

SECONDS = 10.0
MAX_BYTES = 16 * 2**20


class RunningServer(NamedTuple):
    engine: EngineName
    root: str
    """The model as the server was started with it: a path, or the id of a hub's model."""


def ask_server(url: str, key: str | None = None, ca_file: Path | None = None) -> RunningServer:
    """Raises ConfigError if no server of vLLM or llama.cpp answers there."""
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")) or "," in base:
        raise ConfigError(f"engine-url {url} names no single server: set engine to vllm or llama-server.")
    try:
        properties = _get(f"{base}/props", key, ca_file)
        if properties is not None and isinstance(path := properties.get("model_path"), str):
            return RunningServer("llama-server", path)
        if _get(f"{base}/version", key, ca_file) is not None:
            models = (_get(f"{base}/v1/models", key, ca_file) or {}).get("data") or [{}]
            return RunningServer("vllm", str(models[0].get("root") or models[0].get("id")))
    except (OSError, ValueError, LookupError, AttributeError) as error:
        raise ConfigError(f"The server at {url} cannot be asked what it is: {error}.") from error
    raise ConfigError(f"At {url} neither vLLM nor llama-server answers; other servers are no engines here.")


def _get(url: str, key: str | None, ca_file: Path | None) -> dict[str, Any] | None:
    """The object at an address; None if the server has no such address. Raises OSError or ValueError."""
    request = urllib.request.Request(url)  # noqa: S310 - http or https
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    context = None if ca_file is None else ssl.create_default_context(cafile=ca_file)
    # Without the environment's proxy, as all calls of engines.
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=SECONDS) as answer:
            content = json.loads(answer.read(MAX_BYTES))
    except urllib.error.HTTPError as error:
        if error.code in (404, 405, 501):
            return None
        raise
    return content if isinstance(content, dict) else None
