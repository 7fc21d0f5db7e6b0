"""Products of few rows by the optional package: oneDNN's bits, or they are not used."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from engine.model.few_rows import MAX_ROWS, has_equal_bits, load_few_rows
from engine.model.prepacked_linear import PrepackedLinear, ProductTrials
from tests.support.engines import make_prompt, make_request, save_random_model, start_model
from tests.support.equal_bits import with_equal_bits

SOURCE = Path(__file__).parents[4] / "native"
pytestmark = [
    with_equal_bits,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler"),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed, as `make native` does it."""
    folder = tmp_path_factory.mktemp("native")
    source = shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder / "lib")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    return folder / "lib"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What a test imports is not there for the next one, nor is what the environment has for this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "holdfast_native", None)
        yield


@pytest.fixture
def install(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has the package found from then on."""

    def do_install() -> None:
        monkeypatch.syspath_prepend(installed)
        monkeypatch.delitem(sys.modules, "holdfast_native")

    return do_install


@pytest.fixture
def native(install: Callable[[], None]) -> None:
    install()


def layer(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16).requires_grad_(False)


def packed(plain: nn.Linear) -> torch.Tensor:
    weights: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(plain.weight)
    return weights


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 32), (576, 960), (1536, 576), (8960, 1536)])
def test_few_rows_have_the_bits_of_more(inputs: int, outputs: int, bias: bool, threads: int) -> None:
    plain = layer(inputs, outputs, bias=bias)
    few_rows = load_few_rows()
    assert few_rows is not None
    assert has_equal_bits(few_rows, packed(plain), plain.bias)
    prepacked = PrepackedLinear(plain, ProductTrials(few_rows=load_few_rows()))
    hidden = torch.randn(1, 40, inputs).bfloat16()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = prepacked(hidden)
        for count in range(1, MAX_ROWS + 2):
            assert torch.equal(prepacked(hidden[:, :count]), whole[:, :count])
        assert torch.equal(prepacked(hidden[0, 7]), whole[0, 7])
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("size", [1e-19, 1e-39, 1e30])
def test_numbers_near_the_ends_of_the_range_have_the_same_bits(size: float) -> None:
    plain = layer(576, 64, bias=False)
    plain.weight.mul_(min(size, 1.0))
    hidden = (torch.randn(3, 576) * size).bfloat16()
    few, whole = PrepackedLinear(plain, ProductTrials(few_rows=load_few_rows())), PrepackedLinear(plain)
    assert torch.equal(few(hidden).isnan(), whole(hidden).isnan())
    assert torch.equal(few(hidden).nan_to_num(), whole(hidden).nan_to_num())


@pytest.mark.usefixtures("native")
def test_more_rows_than_there_are_products_for_are_refused() -> None:
    few_rows, plain = load_few_rows(), layer(64, 32, bias=False)
    assert few_rows is not None
    assert few_rows(torch.zeros(0, 64).bfloat16(), packed(plain), None).shape == (0, 32)
    with pytest.raises(ValueError, match="5 rows"):
        few_rows(torch.zeros(5, 64).bfloat16(), packed(plain), None)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("inputs", "outputs"), [(100, 64), (64, 44), (90, 64)])
def test_shapes_that_onednn_pads_are_its_own(inputs: int, outputs: int) -> None:
    plain = layer(inputs, outputs, bias=False)
    few_rows = load_few_rows()
    assert few_rows is not None
    assert not has_equal_bits(few_rows, packed(plain), None)
    hidden = torch.randn(2, inputs).bfloat16()
    assert torch.equal(
        PrepackedLinear(plain, ProductTrials(few_rows=load_few_rows()))(hidden),
        PrepackedLinear(plain)(hidden),
    )


def test_a_model_says_the_same_to_the_last_bit(
    install: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_random_model("LlamaConfig", hidden_size=64, intermediate_size=128)
    request = make_request("r", make_prompt(20), 24, temperature=0.9, seed=3, logprobs=2)
    said = []
    for is_installed in (False, True):
        if is_installed:
            install()
        with caplog.at_level(logging.INFO, logger="engine.model.few_rows"):
            bench = start_model(folder, dtype="bfloat16")
        said.append(bench.say(request))
        bench.engine.close(drain=True)
        assert ("holdfast-native" in caplog.text) is is_installed
    assert said[0] == said[1]


def test_without_the_package_or_with_a_broken_one_onednn_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_few_rows() is None
    package = tmp_path / "holdfast_native"
    package.mkdir()
    (package / "few_rows.so").write_text("no library")
    shutil.copy(SOURCE / "holdfast_native" / "__init__.py", package)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "holdfast_native")
    assert load_few_rows() is None
    assert "holdfast-native is not used" in caplog.text
