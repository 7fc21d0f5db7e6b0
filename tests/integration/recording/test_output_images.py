"""Pictures in output items, as a hosted tool may give them, and in the input of runs that are deleted."""

import pytest

from server.generation.run import Run
from server.maintenance.retention import remove_images
from server.protocol.input_images import content_of
from server.protocol.responses.items import InputImage, Item, Message
from server.recording import write_updates
from server.store.content import deletion, images, stored_items
from server.store.content.item_rows import NewItem, stored_item
from tests.integration.recording.recorded import Bench, finished, tokens
from tests.support.builders import TENANT, say
from tests.support.stored_images import PNG, count, digest_of, picture_item, url_of

OTHER = PNG + b"other"


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every output item has two pictures in place of its text."""

    def drawn(item: Item) -> NewItem:
        assert isinstance(item, Message)
        parts = [InputImage(url_of(OTHER)), InputImage(url_of(PNG))]
        return stored_item(Message(item.id, item.status, item.role, [*parts]))

    monkeypatch.setattr(write_updates, "stored_item", drawn)


def ran(bench: Bench) -> Run:
    run = bench.begin()
    bench.feed(tokens(run, say("x")))
    return run


@pytest.mark.usefixtures("drawing")
def test_the_pictures_of_runs_that_end_together_are_stored_once_with_them(bench: Bench) -> None:
    runs = [ran(bench) for _ in range(3)]
    bench.feed(*(finished(run) for run in runs))
    assert (count(bench.database), count(bench.database, "item_images")) == (2, 6)
    with bench.database.begin() as connection:
        for run in runs:
            (payload,) = stored_items.output_items(connection, TENANT, run.facts.id)
            assert content_of(digest_of(PNG)) in payload
        assert len(images.load(connection, TENANT, [digest_of(PNG), digest_of(OTHER)])) == 2


@pytest.mark.usefixtures("drawing")
def test_a_run_that_was_deleted_leaves_no_picture(bench: Bench) -> None:
    run = ran(bench)
    new = [picture_item(run.facts.id, 7, PNG + b"input")]
    with bench.database.begin() as connection:
        images.insert(connection, TENANT, run.facts.id, [(new[0].id, new[0].images[0])])
        assert deletion.delete(connection, TENANT, run.facts.id) is True
    assert remove_images(bench.database) == 0
    bench.feed(finished(run))
    assert remove_images(bench.database) == 3
    assert (count(bench.database), count(bench.database, "item_images")) == (0, 0)
