import cProfile
from html.parser import HTMLParser

import pytest

from server.console.value_formats import MAX_MARKDOWN_CHARS, render_markdown

HARMLESS = {
    "p", "strong", "em", "code", "pre", "a", "ul", "ol", "li", "blockquote", "hr", "br", "s",
    "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    reader = Tags()
    reader.feed(str(render_markdown(text)))
    return reader.found


def test_markdown_becomes_html() -> None:
    html = render_markdown("**bold** `code`\n\n| a |\n|---|\n| ~~1~~ |")
    assert "<strong>bold</strong> <code>code</code>" in html
    assert "<td><s>1</s></td>" in html


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[a](javascript:alert(1))",
        "[a](JaVaScRiPt:alert(1))",
        "[a](&#106;avascript:alert(1))",
        "[a](data:text/html,<script>alert(1)</script>)",
        "[a](vbscript:x)",
        "![a](https://example.org/track.png)",
        "![a](javascript:alert(1))",
        "<https://example.org/\"onmouseover=alert(1)>",
        "[a](https://example.org/ \"x\\\" onclick=alert(1)\")",
        "```\" onclick=alert(1)\nx\n```",
        "[x]: javascript:alert(1)\n\n[x]",
        "<!-- --><iframe srcdoc='<script>alert(1)</script>'></iframe>",
    ],
)  # fmt: skip
def test_nothing_that_a_caller_writes_runs_or_loads(text: str) -> None:
    for tag, attributes in tags(text):
        assert tag in HARMLESS
        assert not [
            name for name in attributes if name.startswith("on") or name in ("src", "srcdoc", "style")
        ]
        assert (attributes.get("href") or "https://").startswith(("http://", "https://", "mailto:"))


def test_a_link_does_not_tell_where_it_was_clicked() -> None:
    assert tags("[a](https://example.org)")[1] == (
        "a",
        {"href": "https://example.org", "rel": "noreferrer noopener"},
    )


def test_a_picture_is_a_link_to_it() -> None:
    assert '<a href="https://example.org/a.png" rel="noreferrer noopener">[cat]</a>' in render_markdown(
        "![cat](https://example.org/a.png)"
    )


def calls(text: str) -> int:
    """How many functions of Python are called to render the text."""
    with cProfile.Profile(builtins=False) as profile:
        render_markdown(text)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize(
    "part", ["[", "![", "[[]", "*a", "*a_", "> ", "`", "![a](", "<a ", "|a|\n|-|\n", "- ", "  - a\n", "a\n"]
)
def test_the_work_on_the_worst_text_grows_with_its_length_alone(part: str) -> None:
    render_markdown(part)
    short, long = (calls((part * size)[:size]) for size in (MAX_MARKDOWN_CHARS // 8, MAX_MARKDOWN_CHARS // 2))
    assert long < 5 * short + 1000
    assert long < 160 * MAX_MARKDOWN_CHARS // 2


def test_a_text_that_is_too_long_is_shown_as_it_is() -> None:
    assert render_markdown("<b>" * MAX_MARKDOWN_CHARS).startswith("<pre>&lt;b&gt;")
