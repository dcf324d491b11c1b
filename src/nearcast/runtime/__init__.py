"""The asyncio driver: runs the core's effects against real servers, sockets and clocks."""
