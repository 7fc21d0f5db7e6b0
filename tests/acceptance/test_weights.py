"""Kill -9 in the middle of a background response, and a next start on a folder of the same name."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from server.configuration.shipped_files import demo_model_folder
from server.protocol.responses.response import TERMINAL_STATUSES
from server.recovery.claimer import CHANGED
from tests.fix_server import PACED, StartServer
from tests.support.attached import HTTP, PATIENCE_S, Body, output_text, retrieve, status
from tests.support.engines import save_random_model
from tests.support.eventually import eventually
from tests.support.scraped import scrape
from tests.support.server_process import MODEL
from tests.support.sse import create, text_of

ASK = {"model": MODEL, "input": "Go on.", "background": True, "max_output_tokens": 200, "temperature": 0}


def copied(folder: Path) -> Path:
    """The demo model in another place, under its name."""
    return shutil.copytree(demo_model_folder(), folder / MODEL)


def with_other_weights(folder: Path) -> Path:
    """The same with weights that differ in one byte of the header."""
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))
    return folder


def ended(
    start_server: StartServer, before: Path, after: Path, settings: Mapping[str, object] = PACED
) -> tuple[Body, str]:
    """A response that the first folder began and the second one ended, and its text until the kill."""
    first = start_server(**settings, model=before)
    with create(first.url, ASK) as stream:
        seen = stream.take(20)
        first.kill()
    response_id = seen[0].json["response"]["id"]
    second = start_server(**settings, model=after)
    eventually(lambda: status(second, response_id) in TERMINAL_STATUSES, within=PATIENCE_S)
    return retrieve(second, response_id), text_of(seen)


def test_other_weights_under_the_same_name_do_not_continue_a_response(
    start_server: StartServer, tmp_path: Path
) -> None:
    first, second = copied(tmp_path / "first"), with_other_weights(copied(tmp_path / "second"))
    final, seen = ended(start_server, first, second)
    assert (final["status"], final["error"]) == ("failed", {"code": "server_error", "message": CHANGED})
    assert output_text(final).startswith(seen)


def hybrid(folder: Path) -> Path:
    """A model with states beside the KV cache: random weights, and the demo model's words and name."""
    vocabulary = json.loads((demo_model_folder() / "config.json").read_text())["vocab_size"]
    made = save_random_model(
        "Qwen3_5TextConfig",
        vocab_size=vocabulary,
        num_hidden_layers=4,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        max_position_embeddings=1024,
    )
    copied(folder)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(made / name, folder / MODEL)
    (folder / MODEL / "generation_config.json").unlink(missing_ok=True)  # which names an end
    return folder / MODEL


def test_a_model_with_states_that_is_killed_goes_on_with_the_same_tokens(
    start_server: StartServer, tmp_path: Path
) -> None:
    folder = hybrid(tmp_path)
    final, seen = ended(start_server, folder, folder, {"engine": "model"})
    server = start_server(engine="model", model=folder)
    undisturbed = HTTP.post(f"{server.api}/responses", json={**ASK, "background": False}).json()
    assert len(seen) < len(output_text(final))
    assert output_text(final) == output_text(undisturbed)
    assert final["usage"]["output_tokens"] == undisturbed["usage"]["output_tokens"] > 20


def test_a_model_that_is_killed_while_drafts_are_accepted_goes_on_with_the_same_tokens(
    start_server: StartServer, tmp_path: Path
) -> None:
    folder = copied(tmp_path)
    ask = {**ASK, "input": f"Repeat: {'the red fox sees the old river, ' * 6}", "ignore_eos": True}
    ask["max_output_tokens"] = 300
    first = start_server(engine="model", model=folder)
    with create(first.url, ask) as stream:
        seen = stream.take(12)
        first.kill()
    response_id = seen[0].json["response"]["id"]
    second = start_server(engine="model", model=folder)
    eventually(lambda: status(second, response_id) in TERMINAL_STATUSES, within=PATIENCE_S)
    final = retrieve(second, response_id)
    assert scrape(second).value("vllm:spec_decode_num_accepted_tokens_total") > 0
    plain = start_server(engine="model", model=folder, prompt_lookup="off")
    undisturbed = HTTP.post(f"{plain.api}/responses", json={**ask, "background": False}).json()
    assert len(text_of(seen)) < len(output_text(final))
    assert output_text(final) == output_text(undisturbed)
    assert final["usage"]["output_tokens"] == undisturbed["usage"]["output_tokens"] == 300


def test_the_same_weights_in_another_place_continue_a_response(
    start_server: StartServer, tmp_path: Path
) -> None:
    final, seen = ended(start_server, copied(tmp_path / "first"), copied(tmp_path / "second"))
    assert final["status"] == "incomplete"
    assert final["usage"]["output_tokens"] == 200
    assert output_text(final).startswith(seen)


@pytest.mark.parametrize("background", [False, True])
def test_a_response_is_stored_with_the_digest_of_its_weights(
    start_server: StartServer, database_url: str, background: bool
) -> None:
    server = start_server()
    answer = HTTP.post(f"{server.api}/responses", json={**ASK, "background": background}).json()
    with psycopg.connect(database_url) as connection:
        (weights,) = connection.execute(
            "select weights from responses where id = %s", (UUID(answer["id"].removeprefix("resp_")),)
        ).fetchone() or (None,)
    assert weights is not None
    assert len(bytes.fromhex(weights)) == 32
