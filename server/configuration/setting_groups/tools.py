"""Settings of tools that the server runs, of pictures, and of webhooks."""

from dataclasses import dataclass
from typing import Literal

from engine.request import MAX_IMAGE_PIXELS
from server.configuration.setting_groups.declare import setting


@dataclass(frozen=True, kw_only=True)
class ToolSettings:
    """Tools."""

    tool_server: str | None = setting(
        None,
        "MCP servers that requests may use by label: label=url or label=stdio:command, comma-separated; the "
        "transport is SSE for a url that ends in /sse, streamable HTTP for any other",
    )
    tool_access: str | None = setting(
        None,
        "who may use a tool-server: label=tenant|tenant|key:ID, or label=* for every tenant, "
        "comma-separated; default: every tenant, for `stdio:` the tenant `default`",
    )
    tool_token: str | None = setting(
        None,
        "tokens for tool-servers that require one, as holdfast-runner and holdfast-browser do: label=token, "
        "comma-separated",
    )
    unserved_tools: Literal["ignore", "refuse"] = setting(
        "ignore",
        "what is done with tools of types that are not served here: ignore (the response names them in "
        "ignored_tools) or refuse",
    )
    mcp_hosts: str | None = setting(
        None,
        "hosts of MCP servers that requests may name by URL: host, host:port, *.host, http://host, or * for "
        "every public host, comma-separated",
    )
    mcp_seconds: float = setting(
        60.0,
        "seconds for an MCP server's answer to a call, and for a call's time in the queue",
        low=0.1,
        high=3600,
    )
    mcp_list_seconds: float = setting(10.0, "seconds for an MCP server to list its tools", low=0.1, high=3600)
    max_hosted_calls: int = setting(
        128, "the maximum of tool calls that the server makes in one response; requests may lower it", low=1
    )


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """Pictures."""

    image_hosts: str | None = setting(
        None,
        "hosts from which pictures are fetched by their URL: host, host:port, *.host, http://host, or * for "
        "every public host, comma-separated; default: none, pictures come as data URLs",
    )
    max_image_pixels: int = setting(
        4 * 1024 * 1024,
        "the pixels of a picture that the model gets; larger pictures are scaled down",
        low=1024,
        high=MAX_IMAGE_PIXELS,
    )
    max_image_tokens: int | None = setting(
        None,
        "the tokens of one picture, for models that make more of a larger one; larger pictures are shrunk; "
        "default: 1024 on a CPU, 4096 on a GPU",
        low=16,
    )


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
