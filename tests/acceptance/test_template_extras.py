"""What callers may tell a chat template beside messages and tools, through both APIs."""

import shutil
from pathlib import Path
from typing import Any

import openai
import pytest

from server.configuration.shipped_files import demo_model_folder
from tests.fix_server import Connect, StartServer
from tests.support.eventually import eventually
from tests.support.families import folder_of
from tests.support.random_models import with_template
from tests.support.server_process import MODEL, ServerProcess

APIS = ["responses", "chat"]
ASK = "Count to 5"


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def say(
    client: Any, api: str, *messages: tuple[str, str], model: str = MODEL, **extra: Any
) -> tuple[str, int]:
    """What the model says, and how many tokens it was told."""
    told: Any = [{"role": role, "content": text} for role, text in messages]
    asked: dict[str, Any] = {"model": model, "temperature": 0, "extra_body": extra}
    if api == "chat":
        answer = client.chat.completions.create(messages=told, max_completion_tokens=24, **asked)
        return answer.choices[0].message.content or "", answer.usage.prompt_tokens
    answer = client.responses.create(input=told, max_output_tokens=24, **asked)
    return answer.output_text, answer.usage.input_tokens


def test_a_message_is_continued_where_it_ends(demo_server: ServerProcess, connect: Connect, api: str) -> None:
    client = connect(demo_server)
    text, told = say(client, api, ("user", ASK), ("assistant", "1, 2, 3"), continue_final_message=True)
    assert text == ", 4, 5"
    anew, more = say(client, api, ("user", ASK), ("assistant", "1, 2, 3"))
    assert anew != text
    assert more > told


def test_a_prompt_may_end_without_a_turn_for_the_model(
    demo_server: ServerProcess, connect: Connect, api: str
) -> None:
    client = connect(demo_server)
    _, whole = say(client, api, ("user", ASK))
    _, bare = say(client, api, ("user", ASK), add_generation_prompt=False)
    assert 0 < whole - bare < 8


def test_variables_on_the_list_reach_the_template_and_others_are_refused_by_name(
    demo_server: ServerProcess, connect: Connect, api: str
) -> None:
    client = connect(demo_server)
    _, silent = say(client, api, ("user", ASK), chat_template_kwargs={"enable_thinking": False})
    _, thinking = say(client, api, ("user", ASK), chat_template_kwargs={"enable_thinking": True})
    assert thinking > silent
    with pytest.raises(openai.BadRequestError) as refused:
        say(client, api, ("user", ASK), chat_template_kwargs={"bos_token": "<|im_end|>"})
    assert refused.value.param == "chat_template_kwargs.bos_token"


def test_documents_that_a_template_cannot_write_are_refused(
    demo_server: ServerProcess, connect: Connect, api: str
) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot write documents") as refused:
        say(connect(demo_server), api, ("user", ASK), documents=[{"title": "a", "text": "b"}])
    assert refused.value.param == "documents"


PLAIN = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception('No system.') }}"
    "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% for d in documents or () %}[{{ d.title }}] {{ d.text }}\n{% endfor %}"
)


def test_a_template_says_what_it_can_write(start_server: StartServer, connect: Connect) -> None:
    """This one knows documents, and neither a system message nor tools, which its users' messages say."""
    server = start_server(
        engine="scripted", model=with_template(folder_of("hermes"), PLAIN), model_name="plain"
    )
    client = connect(server)
    documents = [{"title": "a", "text": "Some words of it."}]
    for api in APIS:
        _, bare = say(client, api, ("user", ASK), model="plain")
        _, whole = say(client, api, ("user", ASK), model="plain", documents=documents)
        assert whole - bare > len("Some words")
        _, led = say(client, api, ("system", "Be brief."), ("user", ASK), model="plain")
        assert led > bare
        tool: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
        if api == "chat":
            tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        _, told = say(client, api, ("user", ASK), model="plain", tools=[tool])
        assert told > bare


BRIEF = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}<|im_start|>assistant
1, 2, 3"""


def test_request_brings_a_template_where_its_operator_lets_it(
    start_server: StartServer, demo_server: ServerProcess, connect: Connect, api: str
) -> None:
    refusing = connect(demo_server)
    with pytest.raises(openai.BadRequestError, match="operator") as refused:
        say(refusing, api, ("user", ASK), chat_template=BRIEF)
    assert refused.value.param == "chat_template"
    server = start_server(engine="model", torch_threads=1, trust_request_chat_template="on")
    client = connect(server)
    text, _ = say(client, api, ("user", ASK), chat_template=BRIEF)
    assert text == ", 4, 5"
    with pytest.raises(openai.BadRequestError, match="not valid") as refused:
        say(client, api, ("user", ASK), chat_template="{% if %}")
    assert refused.value.param == "chat_template"


def test_response_with_a_template_of_its_own_is_finished_by_it_after_a_kill(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server(engine="model", torch_threads=1, trust_request_chat_template="on", lease_seconds=2)
    asked: dict[str, Any] = {"input": "Count to 100", "temperature": 0, "max_output_tokens": 350}
    own = {"chat_template": BRIEF}
    client = connect(server)
    whole = client.responses.create(model=MODEL, **asked, extra_body=own)
    begun = client.responses.create(model=MODEL, **asked, background=True, extra_body=own)
    eventually(lambda: client.responses.retrieve(begun.id).status != "queued", within=60)
    server.restart()
    eventually(lambda: client.responses.retrieve(begun.id).output, within=60)
    ended = client.responses.retrieve(begun.id)
    assert (ended.output_text, ended.usage) == (whole.output_text, whole.usage)


def test_base_model_without_a_template_gets_messages_as_plain_text_after_a_warning(
    start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(demo_model_folder(), base)
    template = (base / "chat_template.jinja").rename(tmp_path / "taken.jinja")
    server = start_server(model=base)
    assert "chat-template" in server.said()
    client = connect(server)
    assert client.completions.create(model="base", prompt="1, 2,", max_tokens=4).choices[0].text
    for api in APIS:
        text, told = say(client, api, ("system", "Be brief."), ("user", ASK), model="base")
        assert "User:" not in text
        _, shorter = say(client, api, ("user", ASK), model="base")
        assert told > shorter > 5
    server.stop()
    again = start_server(model=base, chat_template=template)
    assert "chat-template" not in again.said()
    for api in APIS:
        assert say(connect(again), api, ("user", ASK), model="base")[1] > 5
