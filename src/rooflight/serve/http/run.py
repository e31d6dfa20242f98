"""A folder, served: engine, service, socket and log put together, until a signal.

A first SIGTERM or SIGINT drains: running requests finish, new ones get 503, then the process ends
with 0; with 1 if some had to be cut off, or the device hangs. A second one ends it at once. While
it warms up nothing has begun, and nothing is waited for.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rooflight.files import raise_file_limit
from rooflight.serve.disaggregated.engine import DisaggregatedEngine
from rooflight.serve.disaggregated.sides import PeerConfig
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.load import Placement, load_engine
from rooflight.serve.engine.run import Engine
from rooflight.serve.http.routes import make_app
from rooflight.serve.http.service import ServerSettings, Service
from rooflight.serve.server.allocator import return_large_blocks
from rooflight.serve.server.front import open_front, until_signal
from rooflight.serve.server.logs import Log
from rooflight.serve.server.waiting_limit import WaitingLimit

_HANGS = 1  # as where requests had to be cut off


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is served, where, and how."""

    folder: Path
    config: EngineConfig
    settings: ServerSettings
    limit: WaitingLimit
    sock: socket.socket
    placement: Placement
    log: str | None  # a file; None for stderr
    peer: PeerConfig | None = None


def serve(deployment: Deployment, announce: Callable[[], None]) -> bool:
    """Serves until it is told to stop; false if requests had to be cut off."""
    make = Engine if deployment.peer is None else DisaggregatedEngine
    engine = load_engine(deployment.folder, deployment.config, deployment.placement, make=make)
    log = Log(deployment.log)
    service = Service(
        deployment.folder, engine, deployment.settings, deployment.limit, log, deployment.peer
    )
    try:
        return_large_blocks()
        return asyncio.run(_listen(service, deployment.sock, announce))
    finally:
        log.close()
        if not service.runner.stop(0):  # a device that hangs would hold up the end of the process
            sys.stdout.flush()
            os._exit(_HANGS if service.runner.is_warm else 0)  # or it still compiles


async def _listen(service: Service, sock: socket.socket, announce: Callable[[], None]) -> bool:
    raise_file_limit()
    stopping = until_signal()
    front = await open_front(make_app(service), sock)
    service.start()
    announce()
    await stopping.wait()
    service.log.event("drain", open=service.num_open)
    is_clean = await service.drain()
    await front.cleanup()
    await service.stop()
    service.log.event("stop", clean=is_clean)
    return is_clean
