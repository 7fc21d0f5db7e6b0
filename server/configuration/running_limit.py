"""`running_limit`: how many responses an engine other than the model in this process generates at a time."""

from server.configuration.setting_groups.process import MAX_RUNNING
from server.configuration.settings import Config

CALLS_PER_VLLM_SERVER = 256
"""vLLM's default of `--max-num-seqs`, but for GPUs of 70 GiB or more, where it is 1,024. vLLM does not tell
the value that it was started with; what it cannot run waits there, by priority."""
MOST = 4096


def running_limit(config: Config) -> int:
    """`--max-running`; by default 64, and with vLLM 256 for each URL of `--engine-url`.

    A DNS name or a file of URLs counts as one, since its servers come and go.
    """
    if config.max_running is not None:
        return config.max_running
    if config.engine != "vllm" or config.engine_url is None:
        return MAX_RUNNING
    servers = sum(bool(url.strip()) for url in config.engine_url.split(","))
    return min(MOST, CALLS_PER_VLLM_SERVER * max(1, servers))
