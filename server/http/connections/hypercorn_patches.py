"""Replaces classes of Hypercorn by this package's; connections of our own listener need no replacement."""

from hypercorn import protocol
from hypercorn.protocol import h11 as h11_protocol
from hypercorn.protocol import ws_stream

from server.http.connections.strict_http1 import Http1
from server.http.connections.websocket_messages import Handshake, MessageBuffer, WebSocketStream


def install_patches() -> None:
    """Makes Hypercorn use the replacements for every connection from now on."""
    protocol.H11Protocol = Http1  # type: ignore[attr-defined]
    ws_stream.Handshake = Handshake  # type: ignore[misc]
    ws_stream.WebsocketBuffer = MessageBuffer  # type: ignore[misc]
    h11_protocol.WSStream = WebSocketStream  # type: ignore[attr-defined]
