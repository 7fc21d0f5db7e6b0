import pytest
import torch

from engine.sampling.vocab_chunks import (
    CHUNK_WIDTH,
    argmax,
    chunk_max,
    chunk_sums,
    inverse_cdf,
    kth_highest,
    top_k,
)

SIZES = [1, CHUNK_WIDTH - 1, CHUNK_WIDTH, CHUNK_WIDTH + 1, 20 * CHUNK_WIDTH, 20 * CHUNK_WIDTH + 77]


def rows_of(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(7, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", SIZES)
def test_the_highest_is_the_first_of_the_highest(size: int) -> None:
    rows = rows_of(size).round()
    assert argmax(rows, chunk_max(rows)).tolist() == rows.argmax(dim=1).tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 4, 9, 400])
def test_the_top_is_that_of_all_columns(size: int, count: int) -> None:
    rows = rows_of(size)
    count = min(count, size)
    for maxima in (None, chunk_max(rows)):
        values, columns = top_k(rows, count, maxima)
        assert torch.equal(values, rows.topk(count, dim=1).values)
        assert torch.equal(values, rows.gather(1, columns))
        assert all(len(set(line)) == count for line in columns.tolist())


def test_a_row_with_fewer_numbers_than_are_asked_for_gives_columns_that_exist() -> None:
    rows = torch.full((2, 30 * CHUNK_WIDTH + 5), float("-inf"))
    rows[:, 77] = 1.0
    _, columns = top_k(rows, 8)
    assert columns[:, 0].tolist() == [77, 77]
    assert all(len(set(line)) == 8 and max(line) < rows.shape[1] for line in columns.tolist())


@pytest.mark.parametrize("size", SIZES)
def test_a_share_is_found_where_the_running_sum_passes_it(size: int) -> None:
    rows = torch.randint(0, 3, (50, size), generator=torch.Generator().manual_seed(1)).float()
    rows[:, size // 2] = 1.0
    uniforms = torch.arange(50)[:, None] / 50
    found = inverse_cdf(rows, chunk_sums(rows), uniforms)
    running = rows.cumsum(dim=1)
    for row, uniform, column in zip(running, uniforms[:, 0].tolist(), found.tolist(), strict=True):
        # In whole numbers nothing is rounded but the point itself.
        point = torch.tensor(uniform) * row[-1]
        assert column == (row > point).nonzero()[0, 0].item()


def test_a_share_of_what_rounding_makes_the_whole_is_the_last_column_that_adds_to_it() -> None:
    rows = torch.zeros(1, 3 * CHUNK_WIDTH)
    rows[0, CHUNK_WIDTH + 3 : CHUNK_WIDTH + 5] = 1.0
    assert inverse_cdf(rows, chunk_sums(rows), torch.ones(1, 1)).tolist() == [CHUNK_WIDTH + 4]


def test_a_step_that_rounding_puts_among_zeros_gives_none_of_them() -> None:
    rows = torch.zeros(2, 4 * CHUNK_WIDTH)
    rows[:, 3] = 1.0
    sums = chunk_sums(rows)
    sums[:, 2] = 1e-3  # as if the running sum had gone up where there is nothing
    assert inverse_cdf(rows, sums, torch.tensor([[0.9999], [0.5]])).tolist() == [3, 3]


@pytest.mark.parametrize("count", [1, 7, 2000, 2636, 2637])
def test_the_border_is_the_lowest_of_the_highest(count: int) -> None:
    row = rows_of(20 * CHUNK_WIDTH + 77)[0].round(decimals=1)
    assert kth_highest(row, count).item() == row.sort(descending=True).values[count - 1].item()
