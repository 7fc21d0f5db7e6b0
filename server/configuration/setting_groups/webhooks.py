"""Settings of webhooks."""

from dataclasses import dataclass

from server.configuration.setting_groups.declare import setting


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """Webhooks."""

    webhook_hosts: str = setting(
        "*",
        "hosts that webhooks are sent to: host, host:port, *.host, http://host, * for every public host, and "
        "networks that their names may lead to, such as 10.0.0.0/8, comma-separated; `none` sends nothing",
    )
    webhook_seconds: float = setting(
        15.0, "seconds for a receiver's answer, connecting included", low=0.1, high=60
    )
    webhook_retry_seconds: float = setting(
        5.0,
        "seconds before the first repetition of a webhook; each further pause is twice as long",
        low=0.01,
        high=3600,
    )
