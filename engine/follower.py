"""A rank of a model that is spread over several GPUs, but not the first: `python -m engine.follower`.

It loads its shard, makes its part of the KV cache, and computes each pass that its standard input tells of,
until that ends; see `ranks`. What the logits say is the first rank's affair. Any trouble ends it, and with it
the engine.
"""

import os
import pickle
import queue
import sys
import threading
from contextlib import suppress
from typing import Any, BinaryIO

import torch
from torch import distributed

from engine.config import EngineConfig
from engine.decoding import choose_decoding
from engine.kv import KvStore
from engine.messages import Job, Sampling
from engine.model import LoadedModel, load_model
from engine.packing import Packer, Wish
from engine.ranks import (
    LEAVE_SECONDS,
    Cache,
    Pass,
    Row,
    Scrub,
    Setup,
    Told,
    choose_backend,
    join,
    name_of,
    open_store,
    talk_on_loopback,
)
from engine.scheduler import Chunk, Plan
from engine.sequence import TokenSequence
from engine.table_packing import TablePacker


class Follower:
    """Computes the passes that it is told of."""

    def __init__(self, model: LoadedModel, config: EngineConfig, blocks: int) -> None:
        self._network = model.network
        self._store = KvStore(model.shapes, blocks, config.block_size, model.dtype, model.device)
        context = model.capabilities.context_length
        kernel = choose_decoding(model, self._store, config, context, lambda _line: None).kernel
        self._packer = Packer(self._store) if kernel is None else TablePacker(self._store, kernel, {})
        self._jobs: dict[int, TokenSequence] = {}
        """Those of the last plan, by their keys."""

    def follow(self, message: Told) -> None:
        """Does what the first rank does."""
        match message:
            case Pass(rows, wishes):
                self._compute(self._plan(rows), [Wish(chunk, range(*places)) for chunk, *places in wishes])
            case Scrub(blocks):
                self._store.scrub(blocks)
            case Cache():
                raise ValueError("the KV cache is made once")

    def _plan(self, rows: list[Row]) -> Plan:
        self._jobs = {row.key: self._jobs.get(row.key) or _nobodys_job(row) for row in rows}
        for row in rows:
            job = self._jobs[row.key]
            job.tokens += row.tokens
            job.blocks = row.blocks
        return tuple(Chunk(self._jobs[row.key], row.start, row.count) for row in rows)

    def _compute(self, plan: Plan, wishes: list[Wish]) -> None:
        packed = self._packer.pack(plan, wishes)
        self._network(
            input_ids=packed.token_ids,
            position_ids=packed.positions,
            use_cache=False,
            logits_to_keep=packed.ends,
            step=packed.attention,
        )


def _nobodys_job(row: Row) -> TokenSequence:
    """What is drawn for whom is not known here, nor needed."""
    return TokenSequence(
        Job(job_id=str(row.key), prompt=(), max_tokens=1, sampling=Sampling(seed=0)), row.key
    )


def main() -> None:
    stream = sys.stdin.buffer
    setup = _read(stream)
    assert isinstance(setup, Setup)
    config = setup.config
    if torch.cuda.is_available():
        torch.cuda.set_device(setup.rank)
    store = open_store(setup.store, config)
    talk_on_loopback()
    store.set(name_of(setup.rank), "here")
    join(choose_backend(config), store, setup.rank, config)
    inbox: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(stream, inbox), daemon=True).start()
    model = load_model(config, lambda _line: None)
    with torch.inference_mode():
        follower: Follower | None = None
        while (message := inbox.get()) is not None:
            if follower is None:
                assert isinstance(message, Cache)
                follower = Follower(model, config, message.blocks)
            else:
                follower.follow(message)
    with suppress(RuntimeError):  # the first rank may be gone
        distributed.destroy_process_group()


def _listen(stream: BinaryIO, inbox: "queue.SimpleQueue[Told | None]") -> None:
    with suppress(EOFError):
        while True:
            inbox.put(_read(stream))
    inbox.put(None)
    # The first rank has left, and this one may wait for it in the middle of a pass.
    threading.Event().wait(LEAVE_SECONDS / 2)
    os._exit(1)


def _read(stream: BinaryIO) -> Any:
    """One message. Raises `EOFError` when there are no more."""
    return pickle.load(stream)  # noqa: S301 - from the process that started this one, by a pipe


if __name__ == "__main__":
    main()
