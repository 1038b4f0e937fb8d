"""Ports for servers that tests start."""

import random
import socket
from contextlib import ExitStack

# Below Linux's ephemeral ports (32768-60999): otherwise an outgoing connection of
# another process may take a port before its server listens.
_PORTS = range(12_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, all different."""
    found: list[int] = []
    # `SystemRandom`: a seed that workers share would make them draw the same ports.
    drawn = random.SystemRandom().sample(_PORTS, len(_PORTS))
    with ExitStack() as probes:
        while len(found) < count:
            probe = probes.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port := drawn.pop()))
            except OSError:
                continue
            found.append(port)
    return found
