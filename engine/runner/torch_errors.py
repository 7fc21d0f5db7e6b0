"""`translate_errors`: errors of torch as `OutOfMemory` and `EngineFault`. Engine thread."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.executor import EngineFault, OutOfMemory

OUT_OF_MEMORY_PHRASES = (
    "out of memory", "can't allocate memory", "not enough memory", "alloc_failed", "allocation_failed",
    "failed to allocate",
)  # fmt: skip
"""Parts of the out-of-memory messages of torch, cuBLAS, cuDNN and NCCL, in lower case."""


@contextmanager
def translate_errors() -> Iterator[None]:
    try:
        yield
        return
    except (MemoryError, RuntimeError) as error:  # which torch's own are
        if not _is_out_of_memory(error):
            if isinstance(error, torch.AcceleratorError):
                # After a device-side fault every later call fails, too.
                raise EngineFault(str(error)) from error
            raise
        sentence = str(error)
        # Frees the failed pass's tensors, which its frames refer to.
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    raise OutOfMemory(sentence) from None


def _is_out_of_memory(error: Exception) -> bool:
    """Whether the error is about memory; libraries below torch raise plain RuntimeErrors for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    sentence = str(error).lower()
    return any(words in sentence for words in OUT_OF_MEMORY_PHRASES)
