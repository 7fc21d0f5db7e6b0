"""Where the model of the repository is."""

from __future__ import annotations

from pathlib import Path

import demo

SHIPPED = Path(demo.__file__).with_name("holdfast-demo")
