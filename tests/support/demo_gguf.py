"""`write_gguf`: a Qwen3 model folder as one GGUF file in float32, for llama-server; without torch.

llama.cpp's own converter refuses tokenizers that it does not know. Only token ids are exchanged with the
server, so the pre-tokenizer that is named here is never used.

    python -m tests.support.demo_gguf demo/holdfast-demo model.gguf
"""

import json
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.vocabulary import Vocabulary, read_vocabulary

UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5
"""Types of metadata."""
NORMAL_TOKEN, CONTROL_TOKEN, USER_DEFINED_TOKEN, UNUSED_TOKEN = 1, 3, 4, 5
ALIGNMENT = 32
NO_TOKENIZER: dict[str, Any] = {"added_tokens": [], "model": {"merges": []}}
F32 = 0
"""The type of the tensors."""

OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(folder: Path, file: Path) -> None:
    """Writes `file`; `folder` has config.json, one model.safetensors, and perhaps a tokenizer.json."""
    config = json.loads((folder / "config.json").read_bytes())
    metadata = [*_architecture(config), *_tokenizer(folder, config)]
    tensors = dict(_tensors(folder / "model.safetensors"))
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    header += b"".join(_string(key) + struct.pack("<I", kind) + value for key, kind, value in metadata)
    begin = 0
    for name, values in tensors.items():
        shape = values.shape[::-1]
        header += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, F32, begin)
        begin += _aligned(values.nbytes)
    with file.open("wb") as out:
        out.write(header.ljust(_aligned(len(header)), b"\0"))
        for values in tensors.values():
            out.write(values.tobytes().ljust(_aligned(values.nbytes), b"\0"))


def _architecture(config: dict[str, Any]) -> list[tuple[str, int, bytes]]:
    counts = {
        "qwen3.context_length": config["max_position_embeddings"],
        "qwen3.embedding_length": config["hidden_size"],
        "qwen3.block_count": config["num_hidden_layers"],
        "qwen3.feed_forward_length": config["intermediate_size"],
        "qwen3.attention.head_count": config["num_attention_heads"],
        "qwen3.attention.head_count_kv": config["num_key_value_heads"],
        "qwen3.attention.key_length": config["head_dim"],
        "qwen3.attention.value_length": config["head_dim"],
        "general.file_type": 0,
    }
    numbers = {
        "qwen3.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "qwen3.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    return [
        ("general.architecture", STRING, _string("qwen3")),
        *((key, UINT32, struct.pack("<I", count)) for key, count in counts.items()),
        *((key, FLOAT32, struct.pack("<f", number)) for key, number in numbers.items()),
    ]


def _tokenizer(folder: Path, config: dict[str, Any]) -> list[tuple[str, int, bytes]]:
    """Without a tokenizer.json, the text of each token is `[PADid]`."""
    size = config["vocab_size"]
    vocabulary = read_vocabulary(folder, size) or Vocabulary((b"",) * size)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_bytes()) if file.is_file() else NO_TOKENIZER
    added = {token["id"] for token in tokenizer["added_tokens"]}
    texts, kinds = [], []
    for token_id in range(size):
        text = vocabulary.piece(token_id)
        texts.append(text or f"[PAD{token_id}]")
        if not text:
            kinds.append(UNUSED_TOKEN)
        elif token_id in vocabulary.special:
            kinds.append(CONTROL_TOKEN)
        else:
            kinds.append(USER_DEFINED_TOKEN if token_id in added else NORMAL_TOKEN)
    end = size - 1 if config["eos_token_id"] is None else config["eos_token_id"]
    merges = [one if isinstance(one, str) else " ".join(one) for one in tokenizer["model"]["merges"]]
    return [
        ("tokenizer.ggml.model", STRING, _string("gpt2")),
        ("tokenizer.ggml.pre", STRING, _string("qwen2")),
        ("tokenizer.ggml.tokens", ARRAY, _array(STRING, [_string(text) for text in texts])),
        ("tokenizer.ggml.token_type", ARRAY, _array(INT32, [struct.pack("<i", kind) for kind in kinds])),
        ("tokenizer.ggml.merges", ARRAY, _array(STRING, [_string(merge) for merge in merges])),
        ("tokenizer.ggml.eos_token_id", UINT32, struct.pack("<I", end)),
        ("tokenizer.ggml.add_bos_token", BOOL, b"\0"),
    ]


def _tensors(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """GGUF's name of each tensor, and its values in float32."""
    content = file.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    entries = json.loads(content[8 : 8 + length])
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "F32":
            values = np.frombuffer(content[begin:end], np.float32)
        else:
            assert entry["dtype"] == "BF16", f"{name} is {entry['dtype']}"
            halves = np.frombuffer(content[begin:end], np.uint16)
            values = (halves.astype(np.uint32) << 16).view(np.float32)  # bfloat16 is float32's upper half
        yield _gguf_name(name), values.reshape(entry["shape"])


def _gguf_name(name: str) -> str:
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[part]}.weight"


def _array(kind: int, values: Sequence[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def _string(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
