"""The console's templates: `render`, with the filters that write times, sizes and Markdown."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from server.console.formats import FILTERS
from server.console.static_files import asset_address
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
