"""Compiles the library. It is called through ctypes, and so needs no header of Python's or torch's.

OpenMP is not linked: its functions are found in the runtime that torch has loaded, whose threads are used.
"""

from setuptools import Extension, setup

FEATURES = ["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512bf16", "fma"]
"""Every processor with AMX has them."""

library = Extension(
    "holdfast_native.few_rows",
    ["holdfast_native/few_rows.cpp"],
    extra_compile_args=["-std=c++17", "-O3", "-fopenmp", *(f"-m{feature}" for feature in FEATURES)],
)
setup(ext_modules=[library])
