"""`render_markdown`: what a model or a caller has written, as HTML that runs and loads nothing. Pure."""

from collections.abc import Sequence
from html import escape

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererProtocol
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

MAX_CHARS = 16_000
"""The longest text that is rendered: a character takes up to 0.013 ms of CPU time, most of it brackets."""
_LINK_SCHEMES = ("http://", "https://", "mailto:")


def render_markdown(text: str) -> Markup:
    """The text as HTML. Raw HTML is shown as text, a picture as a link, a text that is too long as it is."""
    if len(text) > MAX_CHARS:
        return Markup("<pre>%s</pre>") % text
    return Markup(_MARKDOWN.render(text))  # noqa: S704 - the renderer escapes, with HTML off


def _image_as_link(
    _renderer: RendererProtocol, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType
) -> str:
    token = tokens[index]
    source = str(token.attrGet("src") or "")
    label = escape(token.content or source)
    if not source.startswith(_LINK_SCHEMES):
        return f"[{label}]"
    return f'<a href="{escape(source)}" rel="noreferrer noopener">[{label}]</a>'


def _open_link(
    renderer: RendererProtocol, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    tokens[index].attrSet("rel", "noreferrer noopener")
    return str(renderer.renderToken(tokens, index, options, env))  # type: ignore[attr-defined]


def _make_parser() -> MarkdownIt:
    """CommonMark with tables and strikethrough, without raw HTML. Links go to the web or to mail alone."""
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])
    parser.validateLink = lambda url: url.strip().lower().startswith(_LINK_SCHEMES)  # type: ignore[method-assign]
    parser.add_render_rule("image", _image_as_link)
    parser.add_render_rule("link_open", _open_link)
    return parser


_MARKDOWN = _make_parser()
