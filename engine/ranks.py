"""A model spread over several GPUs: the process of each but the first, and what all of them are told.

The first rank is this process. The others (`follower`) hold their shards of the weights and of the KV cache,
and compute each pass that this one computes: before it begins one, it writes down what of it they cannot
know. What all have to say to each other within a pass is transformers' affair, and torch's.

Ignorant of what is drawn. A rank that is lost cannot be replaced: the others wait for it in the middle of a
pass.
"""

import logging
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore

from engine.config import EngineConfig, ModelRefused
from engine.executor import EngineFault
from engine.packing import Wish
from engine.scheduler import Plan
from engine.sequence import TokenSequence

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
LEAVE_SECONDS = 10.0
"""A rank that has not ended so long after it was told to is killed."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message: who the rank is, and what is to be loaded."""

    rank: int
    store: str
    """The file through which ranks find each other; its folder is this user's alone."""
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache has so many blocks. Comes second, and once."""

    blocks: int


@dataclass(frozen=True, slots=True)
class Row:
    """A chunk of the plan."""

    key: int
    """Of the job; one that was not in the last plan is new."""
    start: int
    count: int
    tokens: list[int]
    """Those that came since the last plan."""
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass through the model, and the wishes for it: chunk, first place, end."""

    rows: list[Row]
    wishes: list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Scrub:
    blocks: list[int]


Told = Cache | Pass | Scrub


class Ranks:
    """The other ranks' processes: closed by whoever owns the engine, told by the engine thread."""

    def __init__(self, config: EngineConfig) -> None:
        """Returns when all have come. Raises as `choose_backend` does."""
        backend = choose_backend(config)
        # A store that listens would do so for the whole network, and ask nobody who they are.
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-ranks-")
        file = str(Path(self._folder.name) / "store")
        store = open_store(file, config)
        talk_on_loopback()
        self._processes = [_start(rank) for rank in range(1, config.tensor_parallel)]
        self._closing = False
        self._known: WeakKeyDictionary[TokenSequence, tuple[int, int]] = WeakKeyDictionary()
        """Of the jobs of the last plan: key, and how many tokens were told."""
        self._keys = 0
        config = replace(config, model=config.model.absolute())
        try:
            for rank, process in enumerate(self._processes, 1):
                _write(process, Setup(rank, file, config))
            for rank, process in enumerate(self._processes, 1):
                _await(store, rank, process)
            join(backend, store, 0, config)
        except BaseException:
            self.close()
            raise

    def watch(self, tell: Callable[[str], None]) -> None:
        """Calls back, once and on a thread of its own, when a rank ends by itself."""
        once = threading.Lock()
        for rank, process in enumerate(self._processes, 1):
            arguments = (rank, process, once, tell)
            threading.Thread(
                target=self._await_end, args=arguments, name="holdfast-rank", daemon=True
            ).start()

    def tell(self, message: Told) -> None:
        """Raises `EngineFault` if one is lost."""
        try:
            for process in self._processes:
                _write(process, message)
        except OSError as error:
            raise EngineFault("A process that computes a part of the model is gone.") from error

    def tell_of_pass(self, plan: Plan, wishes: Sequence[Wish]) -> None:
        """The ranks are about to compute this plan. Raises as `tell` does."""
        known: WeakKeyDictionary[TokenSequence, tuple[int, int]] = WeakKeyDictionary()
        rows = []
        for chunk in plan:
            sequence = chunk.sequence
            key, told = self._known.get(sequence, (0, 0))
            if not key:
                self._keys += 1
                key = self._keys
            known[sequence] = key, len(sequence.tokens)
            rows.append(Row(key, chunk.start, chunk.count, sequence.tokens[told:], sequence.blocks))
        self._known = known
        self.tell(Pass(rows, [(wish.chunk, wish.places.start, wish.places.stop) for wish in wishes]))

    def close(self) -> None:
        """Ends the other ranks; idempotent."""
        self._closing = True
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.close()
            except BrokenPipeError:
                log.debug("a rank had ended before")
        for process in self._processes:
            try:
                process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._folder.cleanup()

    def _await_end(
        self, rank: int, process: subprocess.Popen[bytes], once: threading.Lock, tell: Callable[[str], None]
    ) -> None:
        code = process.wait()
        if not self._closing and once.acquire(blocking=False):
            tell(f"The process of rank {rank} ended with {code}.")


def choose_backend(config: EngineConfig) -> str:
    """How ranks talk. Raises `ModelRefused` if there are not enough GPUs, or no `accelerate`."""
    if find_spec("accelerate") is None:
        raise ModelRefused("To spread a model over GPUs, transformers needs the package accelerate.")
    if not torch.cuda.is_available():
        return "gloo"
    if config.device == "cpu":
        raise ModelRefused("Where there are GPUs a model is spread over them, not over the CPU.")
    found = torch.cuda.device_count()
    if found < config.tensor_parallel:
        raise ModelRefused(f"tensor_parallel is {config.tensor_parallel}, but there are {found} GPUs.")
    return "nccl"


def open_store(file: str, config: EngineConfig) -> FileStore:
    """Where the ranks say that they are there and how they are reached."""
    return FileStore(file, config.tensor_parallel)


def talk_on_loopback() -> None:
    """Has the libraries of all backends listen for the other ranks of this machine and for nobody else.

    They read the process's environment when the group is made.
    """
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        for name in names:
            os.putenv(variable, name)


def name_of(rank: int) -> str:
    """The key under which a rank says that it is there."""
    return f"rank {rank}"


def join(backend: str, store: Any, rank: int, config: EngineConfig) -> None:
    """Returns when all ranks have come."""
    distributed.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=config.tensor_parallel,
        timeout=timedelta(seconds=config.hang_seconds),
    )


def _start(rank: int) -> "subprocess.Popen[bytes]":
    # transformers takes the number of the GPU from there.
    environment = ("env", f"LOCAL_RANK={rank}")
    return subprocess.Popen(
        [*environment, sys.executable, "-m", "engine.follower"],
        stdin=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        # An interrupt from the keyboard is for the first rank, which may have work to end.
        start_new_session=True,
    )


def _await(store: FileStore, rank: int, process: "subprocess.Popen[bytes]") -> None:
    """Torch itself would wait for one that has ended."""
    while not store.check([name_of(rank)]):
        if process.poll() is not None:
            raise ModelRefused(f"The process of rank {rank} ended with {process.returncode}.")
        time.sleep(POLL_SECONDS)


def _write(process: "subprocess.Popen[bytes]", message: Setup | Told) -> None:
    assert process.stdin is not None
    pickle.dump(message, process.stdin)
    process.stdin.flush()
