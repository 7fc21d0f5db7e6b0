"""A program `vllm` for the PATH: takes vLLM's words, and is the fake server of `engine_server`."""

import sys
from pathlib import Path

from tests.support.server_process import REPOSITORY

_VLLM = """#!{python}
import os, sys
sys.path.insert(0, {repository!r})
words = sys.argv[1:]
if "--nonsense" in words:
    sys.exit("vllm: error: unrecognized arguments: --nonsense")
options = ["--name", words[words.index("--served-model-name") + 1], "--root", words[1], "--model", words[1]]
for name in ("--host", "--port"):
    options += [name, words[words.index(name) + 1]]
from tests.support.server_process import free_port
options += ["--control-port", str(free_port()), "--api-key=" + os.environ["VLLM_API_KEY"]]
options += ["--length", "100", "--step-seconds", "0.02"]
sys.argv[1:] = options
print("vLLM API server version 0.32.0", flush=True)
from tests.support.engine_server import main
sys.exit(main())
"""


def write_vllm(folder: Path) -> None:
    """Writes an executable `vllm` into the folder."""
    program = folder / "vllm"
    program.write_text(_VLLM.format(python=sys.executable, repository=str(REPOSITORY)))
    program.chmod(0o755)
