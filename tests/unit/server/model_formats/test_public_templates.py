"""The tables of public chat templates, where `make template-table` has fetched the templates."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.peers import sources
from tests.support import public_templates
from tests.support.public_templates import GUIDE, PAGE, Row

FETCHED: list[tuple[Path, Callable[[], Mapping[str, str]]]] = [
    (public_templates.LLAMA, public_templates.llama_templates),
    (sources.PEERS / sources.VLLM.replace("==", "-") / "examples", public_templates.vllm_templates),
    (sources.PEERS / sources.TRANSFORMERS.replace("==", "-"), public_templates.transformers_templates),
]


@pytest.mark.parametrize(("folder", "collection"), FETCHED, ids=["llama.cpp", "vllm", "transformers"])
def test_the_page_has_what_is_found_for_each_template_and_all_are_served_with_tools(
    folder: Path, collection: Callable[[], Mapping[str, str]]
) -> None:
    if not folder.is_dir():
        pytest.skip("make template-table fetches the templates")
    templates = collection()
    rows = list(public_templates.rows(templates))
    assert rows
    assert {row.verdict for row in rows} == {"served"}
    assert {row.forced for row in rows} == {"yes"}
    assert "".join(f"{row}\n" for row in rows) in PAGE.read_text()


def test_the_guide_has_what_each_template_writes_of_earlier_reasoning() -> None:
    if not public_templates.LLAMA.is_dir():
        pytest.skip("make template-table fetches the templates")
    assert public_templates.reasoning_table(public_templates.llama_templates()) in GUIDE.read_text()


def test_a_template_of_ours_gets_a_row(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    row = public_templates.row_of("plain", template, tmp_path)
    assert row == Row("plain", "`hermes`", "described", "yes", "yes", "-", "-", "served")
