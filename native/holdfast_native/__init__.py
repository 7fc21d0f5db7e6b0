"""`LIBRARY` is the path of the shared library, whose functions `few_rows.cpp` describes."""

from pathlib import Path

LIBRARY = str(next(Path(__file__).parent.glob("few_rows*.so")))
