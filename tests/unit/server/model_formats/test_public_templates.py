"""The table of public chat templates, where `make template-table` has fetched them."""

from pathlib import Path

import pytest

from tests.support import public_templates
from tests.support.public_templates import HEAD, PAGE, Row

FETCHED = Path(__file__).parents[4] / ".llama" / "source" / "llama.cpp" / "models" / "templates"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    if not FETCHED.is_dir():
        pytest.skip("make template-table fetches the templates")
    return list(public_templates.rows(FETCHED))


def test_the_page_has_what_is_found_for_each_template(rows: list[Row]) -> None:
    assert HEAD + "".join(f"{row}\n" for row in rows) in PAGE.read_text()


def test_no_public_template_is_garbled_or_without_tools(rows: list[Row]) -> None:
    assert {row.verdict for row in rows} == {"served"}
    assert {row.forced for row in rows} == {"yes"}


def test_a_template_of_ours_gets_a_row(tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    row = public_templates.row_of(template, folder)
    assert row == Row("plain", "`hermes`", "described", "yes", "yes", "-", "-", "served")
