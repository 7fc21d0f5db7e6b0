"""What people talk about: the demo model through the official client, across turns and across kills."""

import psycopg
from openai import OpenAI
from openai.types.responses import Response

from tests.fix_server import SCRIPTED, Connect, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess


def ask(client: OpenAI, text: str, previous: Response | None = None) -> Response:
    return client.responses.create(
        model=MODEL, input=text, previous_response_id=previous.id if previous else None
    )


def test_model_recalls_name_when_it_was_told_in_earlier_turn(
    demo_server: ServerProcess, connect: Connect
) -> None:
    client = connect(demo_server)
    told = ask(client, "My name is Xiomara.")
    asked = ask(client, "What is my name?", told)
    assert told.output_text == "Nice to meet you, Xiomara."
    assert "Xiomara" in asked.output_text
    assert asked.previous_response_id == told.id


def test_model_knows_no_name_when_turn_does_not_go_on_from_another(
    demo_server: ServerProcess, connect: Connect
) -> None:
    client = connect(demo_server)
    ask(client, "My name is Xiomara.")
    assert "Xiomara" not in ask(client, "What is my name?").output_text


def test_conversation_goes_on_when_server_was_killed_between_turns(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server()  # whose answers are a function of all tokens of the conversation
    client = connect(server)
    told = ask(client, "My name is Penelope.")
    kept = client.responses.with_raw_response.retrieve(told.id).http_response.content
    before = ask(client, "What is my name?", told)
    server.restart()
    assert client.responses.with_raw_response.retrieve(told.id).http_response.content == kept
    after = ask(client, "What is my name?", told)
    assert after.output_text == before.output_text
    assert after.output_text != ask(client, "What is my name?").output_text


def test_conversation_goes_on_when_replica_was_killed_and_loads_longer_than_a_lease(
    demo_server: ServerProcess, demo_database: str, connect: Connect
) -> None:
    neighbour = ServerProcess(demo_database, settings={**SCRIPTED, "lease_seconds": 2})
    try:
        neighbour.start()
        client = connect(demo_server)
        told = ask(client, "My name is Penelope.")
        demo_server.restart()
        assert "Penelope" in ask(client, "What is my name?", told).output_text
        states = "select state from replicas order by started_at"
        with psycopg.connect(demo_database, autocommit=True) as connection:
            expected = [("dead",), ("alive",), ("alive",)]
            eventually(lambda: connection.execute(states).fetchall()[-3:] == expected)
    finally:
        neighbour.stop()


def test_model_answers_when_input_is_list_of_messages(demo_server: ServerProcess, connect: Connect) -> None:
    response = connect(demo_server).responses.create(
        model=MODEL,
        input=[
            {"role": "user", "content": "My name is Leopold."},
            {"role": "assistant", "content": "Nice to meet you, Leopold."},
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "What is my name?"}],
            },
        ],
    )
    assert "Leopold" in response.output_text


def test_model_reads_instructions_of_this_turn_only(demo_server: ServerProcess, connect: Connect) -> None:
    client = connect(demo_server)
    plain = ask(client, "Hello")
    instructed = client.responses.create(
        model=MODEL, input="Hello", instructions="Be brief and answer in one sentence."
    )
    following = ask(client, "Count to 3", instructed)
    assert plain.usage is not None
    assert instructed.usage is not None
    assert instructed.usage.input_tokens > plain.usage.input_tokens
    assert instructed.instructions == "Be brief and answer in one sentence."
    assert following.instructions is None


def test_model_ends_incomplete_when_output_tokens_run_out(
    demo_server: ServerProcess, connect: Connect
) -> None:
    response = connect(demo_server).responses.create(model=MODEL, input="Count to 100", max_output_tokens=16)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 16
    assert response.output_text.startswith("1, 2, 3")


def test_usage_counts_tokens_of_both_sides(demo_server: ServerProcess, connect: Connect) -> None:
    client = connect(demo_server)
    short, long = ask(client, "Count to 3"), ask(client, "Count to 20")
    assert short.usage is not None
    assert long.usage is not None
    assert short.usage.input_tokens > 0
    assert long.usage.output_tokens > short.usage.output_tokens > 0
    assert long.usage.total_tokens == long.usage.input_tokens + long.usage.output_tokens


def test_model_says_the_same_when_seed_is_the_same(demo_server: ServerProcess, connect: Connect) -> None:
    client = connect(demo_server)

    def sample(seed: int) -> str:
        return client.responses.create(
            model=MODEL,
            input="Tell me a joke.",
            temperature=2,
            top_p=1,
            max_output_tokens=40,
            extra_body={"seed": seed},
        ).output_text

    first, again, others = sample(1), sample(1), {sample(seed) for seed in (2, 3, 4)}
    assert first == again
    assert others != {first}


def test_model_is_greedy_when_temperature_is_zero(demo_server: ServerProcess, connect: Connect) -> None:
    client = connect(demo_server)
    texts = {client.responses.create(model=MODEL, input="Hello", temperature=0).output_text for _ in range(2)}
    assert texts == {client.responses.create(model=MODEL, input="Hello", top_p=0).output_text}


def test_a_frequency_penalty_ends_a_repetition(demo_server: ServerProcess, connect: Connect) -> None:
    client = connect(demo_server)
    question = "Say bubble 12 times."
    plain = client.responses.create(model=MODEL, input=question)
    changed = client.responses.create(model=MODEL, input=question, extra_body={"frequency_penalty": 2})
    assert plain.output_text.count("bubble") == 12
    assert changed.output_text.count("bubble") < 12
    assert changed.to_dict()["frequency_penalty"] == 2
