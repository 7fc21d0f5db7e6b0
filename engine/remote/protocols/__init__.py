"""How each kind of engine server is spoken to, as `remote.interface.EngineProtocol`."""
