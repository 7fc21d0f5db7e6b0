"""`with_equal_bits`: leaves tests out where the processor gives a row other bits beside other rows."""

import pytest
import torch

with_equal_bits = pytest.mark.skipif(
    not torch.cpu._is_amx_tile_supported(), reason="without AMX the bits depend on what is computed together"
)
