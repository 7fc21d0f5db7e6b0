"""The console's templates, with filters for times, sizes and Markdown; its static files with a digest."""

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from server.console.value_formats import FILTERS
from server.errors import NotFound
from server.version import VERSION

_FOLDER = Path(__file__).parent / "templates"


def render(template: str, **values: object) -> str:
    """The HTML of a template, in which every value is escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(asset=asset_address, version=VERSION)
    return environment


FOLDER = Path(__file__).parent / "static"
PREFIX = "/console/static/"
CACHE = "public, max-age=31536000, immutable"
"""Cached for a year: other content has another address."""
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    content: bytes
    media_type: str
    digest: str
    """The first hex digits of its SHA-256."""


@cache
def assets() -> dict[str, Asset]:
    """All of them by their path below the folder, read once."""
    by_name = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in _MEDIA_TYPES:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:16]
            by_name[path.relative_to(FOLDER).as_posix()] = Asset(content, _MEDIA_TYPES[path.suffix], digest)
    return by_name


def asset_address(name: str) -> str:
    """Where pages find a file. Raises KeyError for one that there is not."""
    return f"{PREFIX}{name}?v={assets()[name].digest}"


def serve_static(request: Request) -> Response:
    """The file that the address names, cached where the address has its digest. Raises NotFound."""
    asset = assets().get(request.path_params["name"])
    if asset is None:
        raise NotFound("There is no such file.")
    known = request.query_params.get("v") == asset.digest
    headers = {
        "cache-control": CACHE if known else "no-cache",
        "x-content-type-options": "nosniff",
        "cross-origin-resource-policy": "same-origin",
        "x-request-id": request.state.request_id,
    }
    return Response(asset.content, headers=headers, media_type=asset.media_type)
