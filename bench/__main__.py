"""`python -m bench [name …]` runs the measurements, all of them by default."""

import sys
from importlib import import_module

BENCHES = (
    "serving",
    "path",
    "wire",
    "model_format_harmony",
    "model_format_parsers",
    "stored",
    "durability",
    "chat",
    "background_windows",
    "many_responses",
    "partition_drop",
    "admin_sql",
    "operations",
    "console",
    "replicas",
    "engine_decode",
    "engine_sampling",
    "engine_batching",
    "engine_arrivals",
    "engine_turns",
    "engine_lookup",
    "engine_host",
    "engine_memory",
    "engine_resume",
    "engine_adapters",
    "engine_grammars",
    "images",
    "gpu_check",
    "llama_server",
    "remote",
    "remote_cpu",
    "peers",
)
"""Each is a module here with a `run`, which says in its docstring what it shows and what it costs.

Where it returns True, something is not right."""


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(BENCHES))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are: {', '.join(BENCHES)}")
        return 2
    is_wrong = False
    for name in names or BENCHES:
        run = import_module(f"bench.{name}").run
        print(f"== {name}: {run.__doc__}")
        is_wrong |= bool(run())
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
