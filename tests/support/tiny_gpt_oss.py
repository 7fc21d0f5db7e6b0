"""A gpt-oss of two layers that says what is written here, made when it is asked for.

Nothing of it is learnt from texts: its attention copies the last tokens side by side, and its head is fitted
so that each such context gives the script's next token. What the real engine does with it is what it does
with any gpt-oss: a vocabulary of 201,088 tokens, sinks, sliding windows, experts, sampling, stop tokens.
"""

import atexit
import functools
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.model_formats.harmony.vocabulary import STOPS, TEXT_TOKENS, VOCABULARY
from tests.support.harmony import CONTROL, encoding, ids_of

HIDDEN, HEAD, SEEN = 64, 16, 10
"""Widths of the model and of a head, and how many tokens it looks back."""
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Script:
    """What the model says after a prompt that ends so."""

    after: str
    says: str


_USER = "<|start|>user<|message|>%s<|end|><|start|>assistant"
_THINKS = "<|channel|>analysis<|message|>%s<|end|><|start|>assistant"
_ANSWERS = "<|channel|>final<|message|>%s<|return|>"
GREETING, QUESTION = "Please greet me.", "What is the weather in Ulm?"
OUTSIDE = "18 degrees"
"""What the tool gives."""
SCRIPTS = (
    Script(_USER % GREETING, _THINKS % "A greeting is wanted." + _ANSWERS % "Grüß dich, 世界 🙂!"),
    Script(
        _USER % QUESTION,
        _THINKS % "I need the tool."
        + "<|channel|>commentary<|message|>Let me look outside.<|end|><|start|>assistant"
        + '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city":"Ulm"}<|call|>',
    ),
    Script(
        "<|channel|>commentary<|message|>" + OUTSIDE + "<|end|><|start|>assistant",
        _THINKS % "Now I know it." + _ANSWERS % "In Ulm it is 18 degrees.",
    ),
)  # fmt: skip


def write_tokenizer(folder: Path) -> None:
    """The tokenizer.json of gpt-oss but for its merges, which only encoding needs."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    letters = _byte_letters()
    spelled = {
        "".join([letters[byte] for byte in token]): place
        for place, token in enumerate(encoding().tokens[:TEXT_TOKENS])
    }
    names = {token: name for name, token in CONTROL.items()}
    tokenizer: Any = Tokenizer(models.BPE(vocab=spelled, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(names.get(token, f"<|reserved_{token}|>"), special=True)
            for token in range(TEXT_TOKENS, 200_019)
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


@functools.cache
def tiny_gpt_oss() -> Path:
    """The model's folder, which goes with the process."""
    import torch

    directory = tempfile.TemporaryDirectory(prefix="holdfast-gpt-oss-")
    atexit.register(directory.cleanup)
    folder = Path(directory.name)
    torch.set_num_threads(1)
    torch.manual_seed(11)
    model = _make_model()
    with torch.no_grad():
        _look_back(model)
    _fit_head(model)
    model.to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def _make_model() -> Any:
    import torch
    import transformers

    config = transformers.GptOssConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=SEEN,
        num_key_value_heads=1,
        head_dim=HEAD,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=SEEN + 1,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        pad_token_id=None,
        eos_token_id=sorted(STOPS),
    )
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    return model.eval()


def _look_back(model: Any) -> None:
    """Each head of the first layer sees the token at its own distance; the rest of the model adds nothing."""
    import torch

    known = sorted({token for script in SCRIPTS for token in ids_of(script.after + script.says)})
    embedding = model.model.embed_tokens.weight
    embedding.zero_()
    embedding[known] = torch.randn(len(known), HIDDEN)
    first, second = (layer.self_attn for layer in model.model.layers)
    for attention in (first, second):
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
            projection.weight.zero_()
            projection.bias.zero_()
        attention.sinks.fill_(-10_000.0)
    for layer in model.model.layers:
        layer.mlp.experts.down_proj.zero_()
        layer.mlp.experts.down_proj_bias.zero_()
    # Queries and keys are the same for all tokens. Turned by their positions, their product is the cosine of
    # distance - wanted, at a frequency so low that the window is less than one turn; it is large enough to
    # make the softmax a choice.
    pair, half, strength = 1, HEAD // 2, 60.0
    frequency = 10_000.0 ** (-pair / half)
    first.k_proj.bias[pair] = strength
    queries = first.q_proj.bias.view(SEEN, HEAD)
    for head in range(SEEN):
        queries[head, pair] = strength * math.cos(frequency * (head + 1))
        queries[head, pair + half] = -strength * math.sin(frequency * (head + 1))
    first.v_proj.weight.normal_(std=1 / math.sqrt(HIDDEN))
    first.o_proj.weight.normal_(std=1 / math.sqrt(HEAD))


def _fit_head(model: Any) -> None:
    """The head that gives each context of the scripts its next token, all but surely."""
    import torch

    model.to(torch.bfloat16).to(torch.float32)  # as it will be stored
    contexts, targets = [], []
    for script in SCRIPTS:
        before, said = ids_of(script.after), ids_of(script.says)
        with torch.no_grad():
            seen = model.model(torch.tensor([before + said])).last_hidden_state[0]
        contexts.append(seen[len(before) - 1 : -1])
        targets += said
    known = sorted(set(targets))
    features = torch.cat(contexts)
    wanted = torch.tensor([known.index(token) for token in targets])
    weight = torch.zeros(len(known), HIDDEN, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.3)
    others = torch.full((len(targets), 1), math.log(VOCABULARY))
    for _ in range(400):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(torch.cat([features @ weight.T, others], 1), wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert float(loss.detach()) < 1e-3, "the scripts cannot be told apart by their last tokens"
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[known] = weight.detach()


def _byte_letters() -> list[str]:
    """The letter of each byte in the byte-level alphabet."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + rest.index(byte)) for byte in range(256)]
