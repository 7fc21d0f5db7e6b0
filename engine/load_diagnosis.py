"""`diagnose`: loads a model as the server would, and says what was chosen on this machine, and what was not.

For `holdfast doctor`. Runs every check of a start, and on a CPU, where attention is not checked at a start,
compares it with plain arithmetic, too.
"""

import logging
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from logging.handlers import BufferingHandler

import torch
from transformers import AutoConfig

from engine.attention.kernel_check import attend_with_sdpa, find_fault
from engine.config import EngineConfig, ModelRefused, SchedulerLimits
from engine.model.quantization import quantization_method
from engine.request import ModelInfo
from engine.runner.load_runner import load_runner


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    device: str
    device_name: str
    gpus: int
    dtype: str
    parameters: int
    weight_bytes: int
    quantization: str | None
    """The format of the checkpoint's weights in few bits; None if it has none."""
    dequantized: bool
    """The weights are computed, and held, with all bits of `dtype`."""
    model_info: ModelInfo
    limits: SchedulerLimits
    pipelined: bool
    threads: int
    attention_fault: str | None
    """Why attention is not right here, in a sentence; None if it is."""
    warnings: tuple[str, ...]
    """Lines that were logged while loading: parts that are not used, and why."""


@contextmanager
def _collected_warnings() -> Iterator[list[logging.LogRecord]]:
    """The engine's warnings, which go nowhere else meanwhile."""
    logger, collector = logging.getLogger("engine"), BufferingHandler(sys.maxsize)
    collector.setLevel(logging.WARNING)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(collector)
    try:
        yield collector.buffer
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagates


def diagnose(config: EngineConfig, progress: Callable[[str], None]) -> Diagnosis:
    """Raises `ModelRefused` if the model cannot be served with these settings."""
    with _collected_warnings() as warnings:
        runner, limits = load_runner(config, progress)
        with closing(runner):
            progress("comparing attention with plain arithmetic")
            model = runner.model
            fault = find_fault(attend_with_sdpa, model.specs, model.dtype, model.device, limits.block_size)
            device_name = platform.processor() or platform.machine()
            if model.device.type == "cuda":
                device_name = torch.cuda.get_device_name(model.device)
            weights = list(model.network.parameters())
            weight_bytes = sum(tensor.nbytes for tensor in weights)
            parameters = int(model.network.num_parameters())
            quantization = None
            with suppress(ModelRefused):
                hf_config = AutoConfig.from_pretrained(config.model, local_files_only=True)
                quantization = quantization_method(hf_config)
            return Diagnosis(
                device=str(model.device),
                device_name=device_name,
                gpus=torch.cuda.device_count(),
                dtype=str(model.dtype).removeprefix("torch."),
                parameters=parameters,
                weight_bytes=weight_bytes,
                quantization=quantization,
                dequantized=quantization is not None and weight_bytes >= parameters * model.dtype.itemsize,
                model_info=runner.model_info,
                limits=limits,
                pipelined=runner.pipelined,
                threads=runner.threads,
                attention_fault=fault,
                warnings=tuple(" ".join(record.getMessage().split()) for record in warnings),
            )
