import ctypes
import resource
from pathlib import Path
from typing import Any

import pytest

from engine import kv_cache
from engine.config import EngineConfig, ModelRefused, SchedulerLimits
from engine.kv_cache import (
    CPU_MAX_BYTES,
    GPU_MAX_BLOCKS,
    MAX_FULL_CONTEXTS,
    count_blocks,
    free_memory,
    retain_freed_memory,
)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"device": "tpu"}, "device"),
        ({"dtype": "int8"}, "dtype"),
        ({"kv_blocks": 0}, "kv_blocks"),
        ({"kv_memory": 0}, "kv_memory"),
        ({"kv_memory": 1, "kv_blocks": 1}, "not both"),
        ({"block_size": 0}, "block_size"),
        ({"max_running": 0}, "max_running"),
        ({"max_waiting": -1}, "max_waiting"),
        ({"max_running": 65, "token_budget": 64}, "token_budget"),
        ({"torch_threads": 0}, "torch_threads"),
        ({"hub_kernel": "owner/name"}, "hub_kernel"),
        ({"hub_kernel": "owner/name@main"}, "hub_kernel"),
    ],
)
def test_a_setting_is_refused_with_its_name(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        EngineConfig(model=Path(), **settings)


def test_blocks_are_counted_up() -> None:
    limits = SchedulerLimits(kv_blocks=1, block_size=16)
    assert [limits.blocks_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]


GIB = 2**30


@pytest.mark.parametrize(
    ("gpu_free", "settings", "expected"),
    [
        (None, {}, (512, 64)),
        (0, {}, (2048, 256)),
        (8 * GIB - 1, {}, (2048, 256)),
        (8 * GIB, {}, (4096, 256)),
        (32 * GIB - 1, {}, (4096, 256)),
        (32 * GIB, {}, (8192, 256)),
        (140 * GIB, {}, (8192, 256)),
        (None, {"token_budget": 2048}, (2048, 64)),
        (60 * GIB, {"token_budget": 512}, (512, 256)),
        (60 * GIB, {"token_budget": 24}, (24, 24)),
        (None, {"token_budget": 24}, (24, 24)),
        (None, {"max_running": 600}, (600, 600)),
        (60 * GIB, {"max_running": 600}, (8192, 600)),
        (60 * GIB, {"max_running": 3, "token_budget": 9}, (9, 3)),
    ],
)
def test_the_largest_step_follows_from_the_device_unless_the_operator_says_it(
    gpu_free: int | None, settings: dict[str, int], expected: tuple[int, int]
) -> None:
    config = EngineConfig(model=Path(), **settings)  # type: ignore[arg-type]
    sizes = config.step_sizes(gpu_free)
    assert sizes == expected
    limits = config.limits(kv_blocks=7, block_size=256, sizes=sizes, whole_images=True)
    assert (limits.token_budget, limits.max_running, limits.kv_blocks, limits.block_size) == (
        *expected,
        7,
        256,
    )


def count(gpu_free: int | None = None, block_bytes: int = 1024, **settings: int) -> int:
    config = EngineConfig(model=Path(), **settings)  # type: ignore[arg-type]
    return count_blocks(config, block_size=16, block_bytes=block_bytes, context_length=160, gpu_free=gpu_free)


def test_the_pool_is_as_large_as_it_was_told() -> None:
    assert count(kv_blocks=7) == 7
    assert count(kv_memory=10 * 1024 + 1) == 10
    assert count(kv_memory=10**9) == 10**9 // 1024


def test_the_pool_holds_a_few_dozen_contexts_of_a_small_model() -> None:
    assert count() == MAX_FULL_CONTEXTS * 10


def test_the_pool_is_bounded_by_memory() -> None:
    assert count(block_bytes=2**25) * 2**25 <= min(CPU_MAX_BYTES, free_memory())
    assert count(gpu_free=100 * 1024) == 80


def test_a_gpu_keeps_more_than_the_contexts_that_can_run() -> None:
    assert count(gpu_free=10**6 * 1024) == GPU_MAX_BLOCKS > MAX_FULL_CONTEXTS * 10


@pytest.mark.parametrize(
    ("limit", "used", "statistic"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_files_that_were_read_count_as_free_in_a_control_group(
    limit: str, used: str, statistic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "CGROUPS", ((tmp_path, limit, used, statistic),))
    (tmp_path / limit).write_text(str(2**24))
    (tmp_path / used).write_text(str(2**23 + 2**22))
    assert free_memory() == 2**22
    (tmp_path / "memory.stat").write_text(f"active_file 5\n{statistic} {2**21}\nslab 7\n")
    assert free_memory() == 2**22 + 2**21
    (tmp_path / limit).write_text("max")
    assert free_memory() > 2**24


def test_a_model_is_refused_when_not_one_block_fits() -> None:
    with pytest.raises(ModelRefused, match="room for 0"):
        count(gpu_free=0)


def test_free_memory_is_a_plausible_number() -> None:
    assert 2**20 < free_memory() < 2**50


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library")
def test_memory_that_was_freed_is_there_again_without_the_system() -> None:
    def use() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pieces = [bytearray(2**24) for _ in range(8)]
        assert len(pieces) == 8
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    retain_freed_memory()
    use()
    pages = 8 * 2**24 // resource.getpagesize()
    assert min(use() for _ in range(3)) < pages / 10
