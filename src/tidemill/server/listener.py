"""The door: accepts connections, keeps them within limits, drops those that only hold on.

Limits on a connection that does not behave: a frame must be complete within `FRAME_PATIENCE_S`, unless its bytes
keep coming at `MINIMUM_BYTES_PER_S` or more (a slow link with a large batch is no attack); a connection that
neither sends nor receives for `connections.max.idle.ms` is closed, as Kafka does.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tidemill.server.connection import Connection, Departures, Handle

logger = logging.getLogger(__name__)

FRAME_PATIENCE_S = 8.0
MINIMUM_BYTES_PER_S = 1024
SWEEP_INTERVAL_S = 1.0
ACCEPTS_PER_TURN = 64
WIDER = 2
"""How many times the send buffer those get who read a backlog."""
COMPLAINTS_PER_SWEEP = 5
"""Malformed requests that get a line of their own; a flood of them must not fill the disk with logs."""
BUFFER_REST_S = 10.0
"""After so long without a request a connection gives its large buffer back."""
PAUSE_AFTER_ACCEPT_ERROR_S = 0.1


UNLIMITED_RATE = 2**31 - 1


class ConnectionLimits(NamedTuple):
    max_frame_bytes: int
    max_idle_s: float
    max_connections: int
    max_connections_per_ip: int
    send_buffer_bytes: int
    """-1 leaves it to the system, which lets it grow with the connection."""
    receive_buffer_bytes: int = -1
    max_connections_of: Mapping[str, int] = MappingProxyType({})
    """Another limit for some addresses."""
    max_new_per_second: int = UNLIMITED_RATE


class Listener:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, limits: ConnectionLimits
    ) -> None:
        self._loop = loop
        self._socket = sock
        self.limits = limits
        self._handle: Handle | None = None
        self._departures = Departures(loop)
        self._connections: set[Connection] = set()
        self._per_address: collections.Counter[str] = collections.Counter()
        self._sweeper: asyncio.TimerHandle | None = None
        self.refused_count = 0
        self.malformed_count = 0
        self._malformed_since_sweep = 0
        self._accepted_since_sweep = 0

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def start(self, handle: Handle) -> None:
        self._handle = handle
        self._loop.add_reader(self._socket.fileno(), self._accept)
        self._sweeper = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._accepted_since_sweep >= self.limits.max_new_per_second * SWEEP_INTERVAL_S:
                self._wait_before_accepting(SWEEP_INTERVAL_S)
                return
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            self._admit(sock, address[0] if isinstance(address, tuple) else "")

    def _pause_accepting(self, error: OSError) -> None:
        """Out of descriptors, most likely: the connection stays in the backlog, and we look again soon."""
        logger.error("cannot accept connections: %s; raise the limit of open files (ulimit -n)", error)
        self._wait_before_accepting(PAUSE_AFTER_ACCEPT_ERROR_S)

    def _wait_before_accepting(self, pause_s: float) -> None:
        descriptor = self._socket.fileno()
        self._loop.remove_reader(descriptor)
        self._loop.call_later(pause_s, self._accept_again, descriptor)

    def _accept_again(self, descriptor: int) -> None:
        if self._socket.fileno() == descriptor:
            self._loop.add_reader(descriptor, self._accept)

    def _admit(self, sock: socket.socket, address: str) -> None:
        assert self._handle is not None
        limits = self.limits
        self._accepted_since_sweep += 1
        most = limits.max_connections_of.get(address, limits.max_connections_per_ip)
        if len(self._connections) >= limits.max_connections or self._per_address[address] >= most:
            self.refused_count += 1
            logger.warning("refused a connection from %s: the limit of connections is reached", address)
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if limits.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        if limits.receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
        connection = Connection(
            self._loop,
            sock,
            self._handle,
            limits.max_frame_bytes,
            self._forget,
            self._note_malformed,
            self._departures,
            address,
        )
        connection.wide_buffer_bytes = WIDER * max(0, limits.send_buffer_bytes)
        self._connections.add(connection)
        self._per_address[address] += 1
        connection.start()

    def _forget(self, connection: Connection) -> None:
        address = connection.peer_address
        self._connections.remove(connection)
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]

    def _note_malformed(self, connection: Connection, reason: str) -> None:
        self.malformed_count += 1
        self._malformed_since_sweep += 1
        if self._malformed_since_sweep <= COMPLAINTS_PER_SWEEP:
            logger.warning("closing the connection from %s: %s", connection.peer_address, reason)

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)
        if self._malformed_since_sweep > COMPLAINTS_PER_SWEEP:
            logger.warning(
                "closed %d more such connections", self._malformed_since_sweep - COMPLAINTS_PER_SWEEP
            )
        self._malformed_since_sweep = 0
        self._accepted_since_sweep = 0
        now = self._loop.time()
        for connection in list(self._connections):
            if connection.is_active:
                connection.is_active, connection.last_active = False, now
            if self._is_stalled(connection, now):
                logger.warning("dropping %s: it does not complete its request", connection.peer_address)
                connection.close()
            elif connection.is_reset or self._is_idle(connection, now):
                connection.close()
            elif now - connection.last_active > BUFFER_REST_S:
                connection.release_buffer()

    def _is_stalled(self, connection: Connection, now: float) -> bool:
        began = connection.frame_started_at
        if began is None or now - began < FRAME_PATIENCE_S:
            return False
        return connection.frame_bytes < MINIMUM_BYTES_PER_S * (now - began)

    def _is_idle(self, connection: Connection, now: float) -> bool:
        return now - connection.last_active > self.limits.max_idle_s

    def stop_accepting(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def drain(self, patience_s: float) -> None:
        """Let every connection have its answers, then close it; after `patience_s` close it anyway."""
        deadline = self._loop.time() + patience_s
        waiting = list(self._connections)
        while waiting := [connection for connection in waiting if not connection.drain()]:
            if self._loop.time() >= deadline:
                logger.warning("%d connections did not get all their answers in time", len(waiting))
                break
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.close()
