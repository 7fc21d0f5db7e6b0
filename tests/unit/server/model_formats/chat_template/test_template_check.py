"""A chat template whose marks its format does not read is noticed before the first request."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from server.configuration.settings import Config
from server.errors import ConfigError
from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.chat_template.template_check import contradictions
from server.model_formats.model_format import PromptConversation, PromptError
from server.model_formats.select_format import load_model_format
from server.process.model.load_model import load_model
from server.protocol.responses.items import InputText, Message
from tests.support.families import TOOLS, folder_of, format_of
from tests.support.family_formats import FAMILIES

USER = Message("msg_1", "completed", "user", [InputText("Hi")])
START = "{% for m in messages %}<{{ m.role }}>"
END = "</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
TOOLS_SHOWN = "{{ tools | tojson if tools }}"
CHANNELS = f"{START}{{% if m.role == 'assistant' %}}<<answer>>{{% endif %}}{{{{ m.content }}}}{END}"
THOUGHTS = f"{START}<<mind>>{{{{ m.reasoning_content }}}}<</mind>>{{{{ m.content }}}}{END}"
CALLS = (
    f"{TOOLS_SHOWN}{START}{{{{ m.content }}}}{{% for call in m.tool_calls or () %}}<tool_call>"
    f"{{{{ call.function.name }}}}: {{{{ call.function.arguments | tojson }}}}</tool_call>{{% endfor %}}{END}"
)
Made = Callable[[str], Path]


@pytest.fixture
def with_template(tmp_path: Path) -> Made:
    def make(template: str) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(folder_of("hermes"), folder, dirs_exist_ok=True)
        (folder / "config.json").write_text(
            '{"model_type": "unheard_of", "vocab_size": 600, "eos_token_id": 0}'
        )
        (folder / "chat_template.jinja").write_text(template)
        return folder

    return make


def model_format_of(folder: Path) -> ChatTemplateFormat:
    model_format = load_model_format(folder, frozenset({0}))
    assert isinstance(model_format, ChatTemplateFormat)
    return model_format


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_reads_what_its_template_writes(name: str) -> None:
    assert contradictions(format_of(name)) == []


@pytest.mark.parametrize(
    ("template", "parts"),
    [(CHANNELS, ["answers"]), (THOUGHTS, ["answers", "reasoning"]), (CALLS, ["calls"])],
)
def test_unread_marks_are_named_by_what_they_would_garble(
    with_template: Made, template: str, parts: list[str]
) -> None:
    assert contradictions(model_format_of(with_template(template))) == parts


@pytest.mark.parametrize("quote", ["", "'"])
def test_a_template_that_quotes_every_argument_or_none_is_no_contradiction(
    with_template: Made, quote: str
) -> None:
    argument = f"{{{{ k }}}}={quote}{{{{ f.arguments[k] }}}}{quote}"
    written = f"[{{{{ f.name }}}}({{% for k in f.arguments %}}{argument}{{% endfor %}})]"
    calls = f"{{% for call in m.tool_calls or () %}}{{% set f = call.function %}}{written}{{% endfor %}}"
    template = f"{TOOLS_SHOWN} [func_name1(a=b)] {START}{{{{ m.content }}}}{calls}{END}"
    model_format = model_format_of(with_template(template))
    assert model_format.call_format == "pythonic"
    assert contradictions(model_format) == []


def load(folder: Path, **settings: object) -> tuple[ChatTemplateFormat, list[str]]:
    lines: list[str] = []
    config = Config(engine="scripted", model=folder, **settings)  # type: ignore[arg-type]
    loaded = load_model(config, lambda _messages: None, lines.append, lambda _why: None)
    loaded.engine.close(drain=False)
    assert isinstance(loaded.model_format, ChatTemplateFormat)
    return loaded.model_format, lines


def test_a_server_whose_answers_would_be_garbled_does_not_start_and_names_the_way_out(
    with_template: Made,
) -> None:
    folder = with_template(CHANNELS)
    with pytest.raises(ConfigError, match=r"answers with marks.*chat-template.*template-check"):
        load(folder)
    _, lines = load(folder, template_check="warn")
    assert any("part of the answers' text" in line for line in lines)


def test_calls_that_would_be_read_wrongly_are_said_at_the_start_and_tools_refused(
    with_template: Made,
) -> None:
    model_format, lines = load(with_template(CALLS))
    assert any("otherwise than the format hermes" in line and "tool-parser" in line for line in lines)
    with pytest.raises(PromptError, match="tool_parser") as refused:
        model_format.write(PromptConversation(items=[USER], tools=TOOLS))
    assert refused.value.param == "tools"
    assert model_format.write(PromptConversation(items=[USER])).token_ids


def test_described_tools_are_said_at_the_start(with_template: Made) -> None:
    _, lines = load(with_template(f"{START}{{{{ m.content }}}}{END}"))
    assert any("described in the system message" in line for line in lines)
