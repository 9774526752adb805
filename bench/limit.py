"""The machine's own limit: the same bytes through a bare loop, with no broker and no protocol.

In: a process writes to a loopback socket, this one moves what it receives to a file. Out: the file goes to
the socket by `sendfile`, the other process reads and forgets it. A broker's share of these figures says how
much there is to gain.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time

from bench.session import Session

CHUNK_BYTES = 1 << 20
TOTAL_BYTES = 1 << 30


def measure_limit(session: Session) -> None:
    total = session.plan.of(TOTAL_BYTES / CHUNK_BYTES) * CHUNK_BYTES
    with tempfile.TemporaryDirectory() as directory:
        for number in range(session.plan.rounds):
            session.say(f"the machine's limit: round {number + 1} of {session.plan.rounds}")
            path = os.path.join(directory, "bytes")
            session.record("limit.in", "machine", total / 1e6 / _socket_to_file(path, total))
            session.record("limit.out", "machine", total / 1e6 / _file_to_socket(path, total))
            os.unlink(path)


def _socket_to_file(path: str, total: int) -> float:
    ours, worker = _with_neighbour(_send, total)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    began = time.monotonic()
    with ours, open(path, "wb", buffering=0) as file:
        while received := ours.recv_into(buffer):
            file.write(buffer[:received])
    taken = time.monotonic() - began
    worker.join()
    return taken


def _file_to_socket(path: str, total: int) -> float:
    ours, worker = _with_neighbour(_receive, total)
    began = time.monotonic()
    with ours, open(path, "rb", buffering=0) as file:
        sent = 0
        while sent < total:
            sent += os.sendfile(ours.fileno(), file.fileno(), sent, CHUNK_BYTES)
        ours.shutdown(socket.SHUT_WR)
        ours.recv(1)  # the neighbour closes when it has everything
    taken = time.monotonic() - began
    worker.join()
    return taken


def _with_neighbour(task: object, total: int) -> tuple[socket.socket, multiprocessing.Process]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker = multiprocessing.Process(target=task, args=(listener.getsockname(), total))  # type: ignore[arg-type]
        worker.start()
        ours, _ = listener.accept()
    return ours, worker


def _send(address: tuple[str, int], total: int) -> None:
    chunk = os.urandom(CHUNK_BYTES)
    with socket.create_connection(address) as connection:
        for _ in range(total // CHUNK_BYTES):
            connection.sendall(chunk)


def _receive(address: tuple[str, int], total: int) -> None:
    buffer = bytearray(CHUNK_BYTES)
    with socket.create_connection(address) as connection:
        while connection.recv_into(buffer):
            pass
