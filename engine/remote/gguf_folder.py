"""`write_folder`: what a GGUF file says of its model, as a folder: sizes, tokenizer, template; no weights.

A server of llama.cpp has the weights; the prompt is written and counted here. The keys are those of GGUF's
specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from engine.config import ModelRefused
from engine.remote.gguf_metadata import read_metadata

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_END = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_3 = (rf"{_WORDS}|\p{{N}}{{1,3}}{_END}",)
_QWEN_2 = (rf"{_WORDS}|\p{{N}}{_END}",)
_SINGLE_DIGITS = (r"\p{N}", _GPT_2)
_GPT_4O = (_CASED % (f"{_CONTRACTIONS}?", f"{_CONTRACTIONS}?") + r"|\p{N}{1,3}" + _CASED_END,)
_QWEN_35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA_3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open", "megrez"), _QWEN_2),
    "qwen35": (_QWEN_35,),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "exaone", "mellum2"), _SINGLE_DIGITS),
    **dict.fromkeys(("gpt-2", "olmo", "mpt", "jais", "trillion", "granite-docling"), (_GPT_2,)),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _GPT_4O),
    "tekken": (_CASED % ("", "") + rf"|\p{{N}}{_CASED_END}",),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm"),
        (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_3),
    ),
}
"""How text is split before its bytes are merged, by the value of `tokenizer.ggml.pre`: one after another."""
_CONTROL, _USER_DEFINED = 3, 4
"""Values of `tokenizer.ggml.token_type`: special tokens, and tokens that are found before text is split."""


def write_folder(file: Path, folder: Path) -> None:
    """Writes config.json, tokenizer.json and tokenizer_config.json. Raises ModelRefused if it cannot."""
    try:
        metadata = read_metadata(file)
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{file} cannot be read as a GGUF file: {error}. Fetch it again.") from error
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise ModelRefused(f"{file} has no tokenizer in it, so no prompt can be written for it.")
    architecture = str(metadata.get("general.architecture"))
    config: dict[str, Any] = {
        "model_type": architecture.replace("-", "_"),
        "vocab_size": len(tokens),
        "max_position_embeddings": metadata.get(f"{architecture}.context_length"),
    }
    names: dict[str, Any] = {}
    for name, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token_id, int) and token_id < len(tokens):
            config[f"{name}_token_id"], names[f"{name}_token"] = token_id, tokens[token_id]
    _tokenizer(file, metadata, tokens).save(str(folder / "tokenizer.json"))
    template = metadata.get("tokenizer.chat_template")
    settings = {**names, "chat_template": template} if template else names
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    generation = {"eos_token_id": [token_id for token_id in ends if isinstance(token_id, int)]}
    for name, content in (
        ("config.json", config),
        ("tokenizer_config.json", settings),
        ("generation_config.json", generation),
    ):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _tokenizer(file: Path, metadata: dict[str, Any], tokens: list[str]) -> Tokenizer:
    kinds = metadata.get("tokenizer.ggml.token_type") or []
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return _sentencepiece(file)
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges") or []]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    splits = _SPLITS.get(str(metadata.get("tokenizer.ggml.pre")), (_GPT_2,))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=splits is _LLAMA_3))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(split), "isolated") for split in splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    return tokenizer


def _sentencepiece(file: Path) -> Tokenizer:
    """A tokenizer of another kind, as transformers makes it. Raises ModelRefused."""
    try:
        from transformers import AutoTokenizer

        pretrained: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except Exception as error:
        raise ModelRefused(
            f"The tokenizer in {file} cannot be read here: set --model to a folder with the model's "
            f"config.json, tokenizer.json and chat template, and --gguf {file}."
        ) from error
    tokenizer: Tokenizer = pretrained.backend_tokenizer
    return tokenizer
