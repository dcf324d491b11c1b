"""The gateway: the part of an agent that end users connect to by WebSocket or HTTP."""
