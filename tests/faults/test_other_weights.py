"""F53: kill -9 in the middle of background responses, and a next start on other weights of the same name."""

import random
import shutil
from pathlib import Path

import psycopg
import pytest
from safetensors.torch import load_file, save_file

from server.configuration.shipped_files import demo_model_folder
from server.recovery.claimer import CHANGED
from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.attached import HTTP, PATIENCE_S, Body, ask, output_text, retrieve, status, uncut
from tests.support.eventually import eventually
from tests.support.rounds import rounds
from tests.support.server_process import MODEL, ServerProcess

RESPONSES = 8
ENGINE: dict[str, object] = {"engine": "model", "device": "cpu", "torch_threads": 1, "dtype": "float32"}
"""Where it has the instructions, a CPU computes in bfloat16, in which texts depend on the batch."""


def other_model(folder: Path) -> Path:
    """The demo model as another training may have left it: its layers in another order."""
    shutil.copytree(demo_model_folder(), folder)
    weights = load_file(folder / "model.safetensors")
    swapped = {
        name.replace(".layers.0.", ".layers.x.")
        .replace(".layers.1.", ".layers.0.")
        .replace(".x.", ".1."): one
        for name, one in weights.items()
    }
    assert swapped.keys() == weights.keys()
    save_file(swapped, folder / "model.safetensors", {"format": "pt"})
    return folder


def begin(server: ServerProcess, choose: random.Random, database_url: str) -> tuple[list[Body], list[str]]:
    """Background responses of the server, at least half of which have begun and have not ended."""
    bodies = [
        ask(2 * number + 1, choose, background=True, ignore_eos=True, max_output_tokens=500)
        for number in range(RESPONSES)
    ]
    made: list[str] = [HTTP.post(f"{server.api}/responses", json=body).json()["id"] for body in bodies]
    rows = "select count(distinct response_id) from response_events_hot where token_ids is not null"
    with psycopg.connect(database_url, autocommit=True) as connection:
        eventually(lambda: connection.execute(rows).fetchall()[0][0] >= RESPONSES // 2, within=PATIENCE_S)
    return bodies, made


@pytest.mark.faults
@pytest.mark.parametrize("seed", rounds(few=0, many=2))
def test_other_weights_under_the_same_name_splice_nothing(
    start_server: StartServer, tmp_path: Path, database_url: str, seed: int, tally: Tally
) -> None:
    choose = random.Random(seed)
    first = start_server(**ENGINE)
    bodies, made = begin(first, choose, database_url)
    first.kill()
    second = start_server(**ENGINE, model=other_model(tmp_path / MODEL))
    eventually(
        lambda: all(status(second, one) not in ("queued", "in_progress") for one in made), within=PATIENCE_S
    )
    finals = [retrieve(second, one) for one in made]
    others = uncut(second, bodies)
    second.kill()
    first.start()
    spliced = 0
    for final, own, other in zip(finals, uncut(first, bodies), others, strict=True):
        said = output_text(final)
        assert own != other
        if final["status"] == "failed":
            assert final["error"] == {"code": "server_error", "message": CHANGED}
            assert own.startswith(said)
        else:
            spliced += said not in (own, other)
        tally["F53", "responses with other weights under the same name"] += 1
        tally["F53", "of them not continued"] += final["status"] == "failed"
    tally["F53", "of them spliced"] += spliced
    assert spliced == 0
    assert any(final["status"] == "failed" for final in finals)
