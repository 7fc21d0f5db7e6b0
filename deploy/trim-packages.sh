#!/bin/sh
# trim-packages.sh FOLDER: removes what no server uses from a virtual environment, which is a third of its size, and
# compiles the rest. The images' build runs it.
set -eu
packages=$(echo "$1"/lib/python3.*/site-packages)

# Tests, C++ headers, and the Hub's downloader.
find "$packages" -type d -name tests -prune -exec rm -r {} +
rm -rf "$packages/torch/test" "$packages/torch/include" "$packages/hf_xet"
rm -f "$packages"/torch/bin/*test* "$packages"/torch/bin/*Test* "$packages"/torch/bin/protoc*

# Symbol tables. The libraries in *.libs were patched by auditwheel, after which strip may break them; those for GPUs
# are left as their makers ship them.
find "$packages" -name '*.so*' -type f -not -path '*.libs/*' -not -path '*/nvidia/*' -not -path '*/triton/*' \
    -not -name 'libtorch_cuda*' -exec strip --strip-unneeded {} +

# Compiled modules only of what is likely to be imported: the others are slower by a fraction of a second, once.
"$1/bin/python" -m compileall -q \
    -x '/(sympy|networkx|transformers/models|torch/(_dynamo|_export|_inductor|ao|distributed|onnx|testing))/' "$packages"
