import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from tokenizers.decoders import Fuse

from server.configuration.shipped_files import demo_model_folder
from server.model_formats.chat_template.template import ChatTemplate
from server.model_formats.model_format import PromptError
from server.model_formats.select_format import load_model_format
from tests.support.builders import examples

DEMO = demo_model_folder()
template = ChatTemplate(DEMO)
CONTROLS = {token.content: id_ for id_, token in template.tokenizer.get_added_tokens_decoder().items()}
pieces = st.sampled_from([*CONTROLS, "<", "|", ">", "<|im_", "end|>", " ", "\n", "a", "é", "😀", "\ufdd0"])
texts = st.lists(pieces | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=8).map(
    "".join
)


def encode(user: str, *, system: str | None = None) -> tuple[int, ...]:
    messages = [{"role": "user", "content": user}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return template.encode(template.render(messages))


def frame(*, system: bool) -> list[int]:
    """The control tokens that the template itself writes."""
    ids = encode("x", system="x" if system else None)
    return [id_ for id_ in ids if id_ in CONTROLS.values()]


@given(texts, texts)
@examples(300)
def test_control_tokens_that_users_type_are_only_text(user: str, system: str) -> None:
    ids = encode(user, system=system)
    assert [id_ for id_ in ids if id_ in CONTROLS.values()] == frame(system=True)
    decoded = template.tokenizer.decode(list(ids), skip_special_tokens=False)
    shown_user, shown_system = (re.sub("[\ufdd0\ufdd1]", "", text) for text in (user, system))
    assert decoded == (
        f"<|im_start|>system\n{shown_system}<|im_end|>\n<|im_start|>user\n{shown_user}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("shape", ["{0}", "{0}{0}", "a{0}b", "\ufdd0{0}", "{1}\ufdd0{2}", "{0}\ufdd0"])
def test_every_control_token_is_only_text(control: str, shape: str) -> None:
    typed = shape.format(control, control[:3], control[3:])
    assert [id_ for id_ in encode(typed) if id_ in CONTROLS.values()] == frame(system=False)


@given(st.text(st.sampled_from("ab "), max_size=12))
@examples(200)
def test_control_tokens_that_overlap_are_only_text(made_folder: Callable[..., Path], text: str) -> None:
    overlapping = ["ab", "ba", "aba", "  ", "   "]
    made = ChatTemplate(made_folder(overlapping, "{{ messages[0].content }}"))
    ids = made.encode(made.render([{"role": "user", "content": text}]))
    controls = {made.tokenizer.token_to_id(control) for control in overlapping}
    assert not controls & set(ids)
    assert made.tokenizer.decode(list(ids), skip_special_tokens=False) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "messages",
    [
        [("user", "Hello!")],
        [("system", "Be brief."), ("user", "What is 2 + 2?")],
        [("user", "a"), ("assistant", "b"), ("user", "c\n\nd  ")],
        [("user", ""), ("assistant", ""), ("user", "Grüße 😀\u2028 12345")],
    ],
)
def test_ordinary_conversations_get_the_ids_that_transformers_gives(messages: list[tuple[str, str]]) -> None:
    from transformers import AutoTokenizer

    given = [{"role": role, "content": content} for role, content in messages]
    reference = AutoTokenizer.from_pretrained(DEMO)
    expected = reference.apply_chat_template(given, add_generation_prompt=True, return_dict=False)
    assert list(template.encode(template.render(given))) == list(expected)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% set x = messages[0] %}{{ x.update({'role': 'system'}) }}",
        "{{ range(1000000) }}",
    ],
)
def test_a_template_that_reaches_out_of_its_sandbox_is_refused(
    made_folder: Callable[..., Path], source: str
) -> None:
    made = ChatTemplate(made_folder([], source))
    with pytest.raises(PromptError):
        made.render([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ '%s' % messages.__class__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
    ],
)
def test_our_insides_are_nothing_to_a_template(made_folder: Callable[..., Path], source: str) -> None:
    made = ChatTemplate(made_folder([], source))
    assert made.render([{"role": "user", "content": "a"}]) == ""


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('Only users may speak.') }}",
        "{{ messages[7].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages|first|sort|map(attribute='x')|join }}{{ missing.thing }}",
        "{{ strftime_now(3) }}",
    ],
)
def test_a_template_that_refuses_or_fails_is_a_prompt_error(
    made_folder: Callable[..., Path], source: str
) -> None:
    made = ChatTemplate(made_folder([], source))
    with pytest.raises(PromptError):
        made.render([{"role": "user", "content": "a"}])


def test_the_sentence_of_a_template_that_refuses_is_told(made_folder: Callable[..., Path]) -> None:
    made = ChatTemplate(made_folder([], "{{ raise_exception('Only users may speak.') }}"))
    with pytest.raises(PromptError, match=re.escape("Only users may speak.")):
        made.render([{"role": "user", "content": "a"}])


def test_special_tokens_and_filters_are_there_for_templates(made_folder: Callable[..., Path]) -> None:
    source = "{{ bos_token }}|{{ {'é': 1}|tojson }}|{{ strftime_now('%Y')|length }}|{% break %}"
    source = "{% for m in messages %}" + source + "{% endfor %}"
    made = ChatTemplate(made_folder([], source, bos_token={"content": "<s>"}))
    assert made.render([{"role": "user", "content": "a"}]) == '<s>|{"é": 1}|4|'


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", None),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "not json"),
        ("tokenizer_config.json", "not json"),
        ("chat_template.jinja", "{% if %}"),
        ("chat_template.jinja", "{{ unclosed"),
    ],
)
def test_a_folder_that_is_not_usable_is_refused_by_name(
    made_folder: Callable[..., Path], file: str, content: str | None
) -> None:
    folder = made_folder([], "{{ messages[0].content }}")
    (folder / "chat_template.jinja").unlink()
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises((FileNotFoundError, ValueError), match=re.escape(str(folder))):
        load_model_format(folder, frozenset())


def test_the_template_may_be_in_the_tokenizers_configuration(made_folder: Callable[..., Path]) -> None:
    folder = made_folder([], "")
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "tool_use", "template": "wrong"}, {"name": "default", "template": "right"}]
    for template_entry in ("right", named):
        config = {"chat_template": template_entry}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        assert ChatTemplate(folder).render([{"role": "user", "content": "a"}]) == "right"


@pytest.fixture
def made_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model folder whose tokenizer knows single characters and these added tokens."""

    def make(added: list[str], source: str, **config: object) -> Path:
        vocabulary = {chr(code): code for code in range(256)} | {"?": ord("?")}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer.decoder = Fuse()
        tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in added])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "chat_template.jinja").write_text(source)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "é!"),
        ("{{ [messages[0].content]|tojson(ensure_ascii=True) }}", '["\\u00e9"]'),
        ("{{ {'b': 1, 'a': 2}|tojson(sort_keys=True, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ [1]|tojson(indent=1) }}", "[\n 1\n]"),
    ],
)
def test_a_template_has_what_transformers_gives_it(
    made_folder: Callable[..., Path], source: str, rendered: str
) -> None:
    assert ChatTemplate(made_folder([], source)).render([{"role": "user", "content": "é"}]) == rendered


def test_json_in_ascii_hides_no_control_token_and_shows_no_marker(made_folder: Callable[..., Path]) -> None:
    made = ChatTemplate(made_folder(["ab"], "{{ messages[0].content|tojson(ensure_ascii=True) }}"))
    ids = made.encode(made.render([{"role": "user", "content": "ab"}]))
    assert made.tokenizer.decode(list(ids), skip_special_tokens=False) == '"ab"'
    assert made.tokenizer.token_to_id("ab") not in ids


def test_a_tokenizer_that_puts_a_space_before_text_puts_none_within_it(tmp_path: Path) -> None:
    words = {word: place for place, word in enumerate(["?", "▁", "▁x", "x", "a", "b", "▁a", "\n", "c"])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[("▁", "x"), ("▁", "a")], unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.add_special_tokens([AddedToken("ab", normalized=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    made = ChatTemplate(tmp_path)
    ids = made.encode(made.render([{"role": "user", "content": "xabc"}]))
    assert [made.tokenizer.id_to_token(id_) for id_ in ids] == ["▁x", "a", "b", "c"]


def test_a_prompt_has_around_it_what_the_tokenizer_puts_around_texts_where_that_is_asked_for(
    made_folder: Callable[..., Path],
) -> None:
    folder = made_folder(["<begin>", "<end>"], "{{ messages[0].content }}")
    plain = ChatTemplate(folder)
    assert plain.surround((1, 2)) == (1, 2)
    begin, end = (plain.tokenizer.token_to_id(token) for token in ("<begin>", "<end>"))
    plain.tokenizer.post_processor = processors.TemplateProcessing(
        single="<begin> $A <end>", special_tokens=[("<begin>", begin), ("<end>", end)]
    )
    plain.tokenizer.save(str(folder / "tokenizer.json"))
    assert ChatTemplate(folder).surround((1, 2)) == (begin, 1, 2, end)
