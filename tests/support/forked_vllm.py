"""`python -m tests.support.forked_vllm serve …`: vLLM's command in a process that has imported it already.

On CPUs vLLM starts its engine core and its worker as new processes. Here they are forked, so that they do not
import everything again. Runs with vLLM's own interpreter, which has none of our packages.
"""

import multiprocessing
import multiprocessing.context
import sys
from importlib import import_module


def fork_context() -> multiprocessing.context.BaseContext:
    return multiprocessing.get_context("fork")


def main() -> None:
    original = import_module("vllm.utils.system_utils").get_mp_context
    for module in list(sys.modules.values()):
        if getattr(module, "get_mp_context", None) is original:
            module.get_mp_context = fork_context  # type: ignore[attr-defined]
    import_module("vllm.entrypoints.cli.main").main()


if __name__ == "__main__":
    main()
