"""Pictures in chat templates: content parts, placeholders, and where their tokens are in the prompt."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import Fuse

from server.model_formats.model_format import Prompt, PromptConversation, PromptError
from server.model_formats.select_format import load_model_format
from server.protocol.responses.items import (
    ContentPart,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    PreparedImage,
)

IMAGE, ROW_END, START, END = "<image>", "<row_end>", "<start>", "<end>"
TEXT_OR_PARTS = (
    "{%- for m in messages %}{{ '<start>' + m.role + ':' }}"
    "{%- if m.content is string %}{{ m.content }}"
    "{%- else %}{%- for part in m.content %}"
    "{%- if part.type == 'image' %}{{ '<image>' }}{%- elif 'text' in part %}{{ part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}"
    "{%- for call in m.tool_calls or [] %}{{ call | tojson }}{%- endfor %}"
    "{{ '<end>' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<start>assistant:' }}{%- endif %}"
    "{%- for tool in tools or [] %}{{ tool | tojson }}{%- endfor %}"
)
PARTS_ONLY = (
    "{%- for m in messages %}{{ '<start>' + m.role + ':' }}"
    "{%- for part in m.content | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{%- endfor %}"
    "{%- for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{%- endfor %}"
    "{{ '<end>' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<start>assistant:' }}{%- endif %}"
)
TEXT_ONLY = "{%- for m in messages %}{{ '<start>' + m.role + ':' + m.content + '<end>' }}{%- endfor %}"
NO_PICTURES_OF_TOOLS = TEXT_OR_PARTS.replace(
    "{%- if m.content is string %}",
    "{%- if m.role == 'tool' and m.content is not string %}?{%- elif m.content is string %}",
)
LETTERS = {chr(code): code - 32 for code in range(32, 127)}


def folder(tmp_path: Path, template: str) -> Path:
    tokenizer = Tokenizer(models.BPE(vocab=dict(LETTERS), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (IMAGE, ROW_END, START, END)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(template)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    return tmp_path


def picture(name: str, tokens: int = 2) -> PreparedImage:
    """Its text has a row of tokens, the end of a row, and the rest of them."""
    text = f"{IMAGE}{ROW_END}{IMAGE * (tokens - 1)}"
    return PreparedImage(data=name.encode(), digest=name.encode(), text=text, tokens=tokens)


def user(*parts: ContentPart | str) -> Message:
    content = [InputText(part) if isinstance(part, str) else part for part in parts]
    return Message("", "completed", "user", content)


def written(
    tmp_path: Path, template: str, *items: Item, instructions: str | None = None
) -> tuple[str, Prompt]:
    """The prompt's text, and the prompt."""
    path = folder(tmp_path, template)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    model_format = load_model_format(
        path,
        frozenset({1}),
        tool_parser="hermes",
        image_placeholder=IMAGE,
        image_token_id=tokenizer.token_to_id(IMAGE),
    )
    prompt = model_format.write(PromptConversation(items=items, instructions=instructions))
    return tokenizer.decode(list(prompt.token_ids), skip_special_tokens=False), prompt


def tokens_of(text: str, prompt: Prompt) -> list[str]:
    """What the prompt has where it says that its pictures are."""
    ids = {IMAGE: "i", ROW_END: "r", START: "s", END: "e"}
    for token, letter in ids.items():
        text = text.replace(token, letter)
    return [text[image.start : image.start + image.length] for image in prompt.images]


@pytest.mark.parametrize("template", [TEXT_OR_PARTS, PARTS_ONLY])
def test_a_picture_stands_where_the_template_writes_it(tmp_path: Path, template: str) -> None:
    text, prompt = written(tmp_path, template, user(picture("a"), "What is it?"))
    assert text == f"{START}user:{IMAGE}{ROW_END}{IMAGE}What is it?{END}{START}assistant:"
    assert tokens_of(text, prompt) == ["iri"]
    assert [image.data for image in prompt.images] == [b"a"]


def test_pictures_keep_their_places_among_texts_and_turns(tmp_path: Path) -> None:
    answer = Message("", "completed", "assistant", [OutputText("Red.")])
    items = user("A:", picture("a", 3), "B:", picture("b")), answer, user("Now?", picture("a", 3))
    text, prompt = written(tmp_path, TEXT_OR_PARTS, *items)
    a, b = f"{IMAGE}{ROW_END}{IMAGE}{IMAGE}", f"{IMAGE}{ROW_END}{IMAGE}"
    assert text == (
        f"{START}user:A:{a}B:{b}{END}{START}assistant:Red.{END}{START}user:Now?{a}{END}{START}assistant:"
    )
    assert [image.data for image in prompt.images] == [b"a", b"b", b"a"]
    assert tokens_of(text, prompt) == ["irii", "iri", "irii"]


def test_what_users_type_is_no_picture(tmp_path: Path) -> None:
    typed = f"{IMAGE} \ufdd20\ufdd2 {ROW_END}"
    text, prompt = written(tmp_path, TEXT_OR_PARTS, user(typed, picture("a"), typed), instructions=typed)
    assert len(prompt.images) == 1
    assert tokens_of(text, prompt) != []
    ids = prompt.token_ids
    image_id = ids[prompt.images[0].start]
    assert ids.count(image_id) == 2
    said = f"{IMAGE} 0 {ROW_END}"
    assert text.count(said) == 3


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TEXT_OR_PARTS, f"tool:Seen:{IMAGE}{ROW_END}{IMAGE}{END}{START}assistant:"),
        (
            NO_PICTURES_OF_TOOLS,
            f"tool:Seen:{END}{START}user:{IMAGE}{ROW_END}{IMAGE}{END}{START}assistant:",
        ),
    ],
)
def test_pictures_of_tool_outputs_are_written_there_or_in_a_message_after_them(
    tmp_path: Path, template: str, expected: str
) -> None:
    call = FunctionCall("", "completed", "call_1", "look", "{}")
    output = FunctionCallOutput("", "completed", "call_1", [InputText("Seen:"), picture("a")])
    text, prompt = written(tmp_path, template, user("Look."), call, output)
    assert text.endswith(expected)
    assert tokens_of(text, prompt) == ["iri"]


def test_a_template_that_cannot_write_pictures_refuses_them_alone(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="cannot write pictures"):
        written(tmp_path, TEXT_ONLY, user(picture("a")))
    text, _ = written(tmp_path, TEXT_ONLY, user("Hi"))
    assert text == f"{START}user:Hi{END}"


def test_pictures_that_were_not_read_are_a_sentence(tmp_path: Path) -> None:
    text, prompt = written(tmp_path, TEXT_OR_PARTS, user(InputImage("https://example.com/a.png")))
    assert "cannot see it" in text
    assert prompt.images == ()
