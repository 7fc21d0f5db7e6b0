"""What callers may tell a chat template beside messages and tools, through both APIs."""

from typing import Any

import openai
import pytest

from tests.fix_server import Connect, StartServer
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
    """This one knows documents, and neither tools nor a system message, which its users say instead."""
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
        with pytest.raises(openai.BadRequestError, match="cannot write tools") as refused:
            say(client, api, ("user", ASK), model="plain", tools=[tool])
        assert refused.value.param == "tools"
