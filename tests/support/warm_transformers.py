"""Imported by a fork server: compiles the 900 expressions with which transformers finds names of weights."""

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("qwen3")  # type: ignore[no-untyped-call]
