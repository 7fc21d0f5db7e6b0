"""LoRA adapters are models beside the model: by name, over HTTP, in the same batch."""

from tests.fix_server import Connect, StartServer
from tests.support.server_process import MODEL, run_command

QUESTION = "Count to 5"
ANSWER = "1, 2, 3, 4, 5"


def test_an_adapter_answers_under_its_own_name_and_leaves_the_model_alone(
    start_server: StartServer, connect: Connect
) -> None:
    from server.configuration.shipped_files import demo_model_folder
    from tests.support.adapters import make_adapter  # torch, which no other acceptance test needs

    adapter = make_adapter(demo_model_folder())
    server = start_server(engine="model", torch_threads=1, adapters=f"tuned={adapter.folder}")
    client = connect(server)
    assert [model.id for model in client.models.list()] == [MODEL, "tuned"]

    def ask(model: str) -> str:
        response = client.responses.create(model=model, input=QUESTION, max_output_tokens=20)
        assert response.model == model
        return response.output_text

    assert ask(MODEL) == ANSWER
    tuned = ask("tuned")
    assert tuned != ANSWER
    assert ask("tuned") == tuned
    assert ask(MODEL) == ANSWER


def test_a_folder_that_is_no_adapter_is_refused_at_the_start() -> None:
    refused = run_command("serve", adapters="tuned=/nowhere")
    assert refused.returncode == 1
    assert "/nowhere is not an adapter's folder" in refused.stderr
