"""One connection over a socket pair: framing, order, zero copy, back-pressure, hostile sizes."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tidemill.ports.disk import Disk
from tidemill.server.connection import JOINED_BYTES, MAX_OPEN_SLOTS, Connection, Departures, Slot
from tidemill.wire.frames import FileSlice

MAX_FRAME = 8 * 1024 * 1024


class Peer:
    """A connection whose requests land in a list, and the client's end of its socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        server, self.client = socket.socketpair()
        server.setblocking(False)
        self.client.setblocking(False)
        self.loop = loop
        self.requests: list[tuple[bytes, Slot]] = []
        self.malformed: list[str] = []
        self.closed = False
        self.holds_back = False
        self.answers_with_others = False
        self.coroutine: Callable[[bytes, Slot], Coroutine[Any, Any, None]] | None = None
        self.connection = Connection(
            loop, server, self._handle, MAX_FRAME, self._closed, self._malformed, Departures(loop)
        )
        self.connection.start()

    def _handle(self, frame: memoryview, address: str, slot: Slot) -> Coroutine[Any, Any, None] | None:
        body = bytes(frame)
        self.requests.append((body, slot))
        if self.answers_with_others:
            slot.respond_with_others([body])
        if self.holds_back:
            slot.hold_back_others()
        return self.coroutine(body, slot) if self.coroutine else None

    def _closed(self, connection: Connection) -> None:
        self.closed = True

    def _malformed(self, connection: Connection, reason: str) -> None:
        self.malformed.append(reason)

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.client, data)

    async def receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            chunk = await asyncio.wait_for(self.loop.sock_recv(self.client, size - len(received)), 5)
            if not chunk:
                break
            received += chunk
        return received

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.001)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def run(scenario: Callable[[Peer], Awaitable[None]]) -> None:
    async def inside() -> None:
        peer = Peer(asyncio.get_running_loop())
        try:
            await scenario(peer)
        finally:
            peer.connection.close()
            peer.client.close()

    asyncio.run(inside())


def test_an_answered_request_lets_go_of_what_waited_for_it() -> None:
    """A waiting fetch knows its slot and the slot knows the fetch; 500 polls left to the collector stall the loop."""

    class Waiting:
        def __init__(self, slot: Slot) -> None:
            self.slot = slot
            slot.on_abandoned = self.abandon

        def abandon(self) -> None:
            self.slot.respond([])

    async def scenario(peer: Peer) -> None:
        await peer.send(frame(b"poll"))
        await peer.until(lambda: len(peer.requests) == 1)
        _, slot = peer.requests.pop()
        waiting = Waiting(slot)
        trace = weakref.ref(waiting)
        slot.respond([b"answer"])
        gc.disable()
        try:
            del waiting, slot
            assert trace() is None
        finally:
            gc.enable()

    run(scenario)


def test_a_request_that_failed_in_a_thread_lets_go_of_what_it_held() -> None:
    """Sixty refused batches that unpack to sixteen megabytes each would be a gigabyte until the collector comes."""

    class Held:
        """As large as you like."""

    traces: list[weakref.ref[Held]] = []

    def work() -> None:
        held = Held()
        traces.append(weakref.ref(held))
        raise ValueError

    async def refuse(body: bytes, slot: Slot) -> None:
        try:
            await asyncio.to_thread(work)
        except ValueError:
            slot.respond([b"no"])

    async def scenario(peer: Peer) -> None:
        peer.coroutine = refuse
        gc.disable()
        try:
            await peer.send(frame(b"batch"))
            assert await peer.receive(2) == b"no"
            await peer.until(lambda: peer.connection._task is None)
            await asyncio.sleep(0)
            assert [trace() for trace in traces] == [None]
        finally:
            gc.enable()

    run(scenario)


def test_answers_leave_in_the_order_of_the_requests() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(frame(b"one") + frame(b"two") + frame(b"three"))
        await peer.until(lambda: len(peer.requests) == 3)
        slots = dict(peer.requests)
        slots[b"three"].respond([b"3"])
        slots[b"two"].respond([])
        slots[b"one"].respond([b"1"])
        assert await peer.receive(2) == b"13"

    run(scenario)


def test_who_is_answered_with_others_is_answered_at_the_end_of_the_turn() -> None:
    async def scenario(peer: Peer) -> None:
        other = Peer(peer.loop)
        other.connection.departures = peer.connection.departures
        await peer.send(frame(b"first") + frame(b"second"))
        await other.send(frame(b"of another"))
        await peer.until(lambda: len(peer.requests) == 2 and len(other.requests) == 1)
        for (body, slot), answer in zip(peer.requests + other.requests, (b"1", b"2", b"3"), strict=True):
            assert body
            slot.respond_with_others([answer])
        assert not peer.connection.is_idle and not other.connection.is_idle
        await asyncio.sleep(0)
        assert peer.connection.is_idle and other.connection.is_idle
        assert (await peer.receive(2), await other.receive(1)) == (b"12", b"3")
        other.connection.close()
        other.client.close()

    run(scenario)


def test_more_requests_at_once_than_may_be_open_are_all_answered_with_others() -> None:
    """They are answered on the spot, but leave later: whoever stopped for want of room must go on then."""
    count = 2 * MAX_OPEN_SLOTS + 10

    async def scenario(peer: Peer) -> None:
        peer.answers_with_others = True
        await peer.send(frame(b"x") * count)
        assert await peer.receive(count) == b"x" * count
        await peer.send(frame(b"y"))
        assert await peer.receive(1) == b"y"

    run(scenario)


def test_draining_answers_more_than_may_be_open() -> None:
    count = 2 * MAX_OPEN_SLOTS + 10

    async def scenario(peer: Peer) -> None:
        peer.answers_with_others = True
        await peer.send(frame(b"x") * count)
        await peer.until(peer.connection.drain)
        assert await peer.receive(count) == b"x" * count

    run(scenario)


def test_a_bad_frame_does_not_take_the_answers_before_it_along() -> None:
    async def scenario(peer: Peer) -> None:
        peer.answers_with_others = True
        await peer.send(frame(b"x") + struct.pack(">i", -5))
        assert await peer.receive(2) == b"x"
        assert peer.closed

    run(scenario)


def test_one_connection_that_cannot_send_does_not_keep_the_others_back() -> None:
    async def scenario(peer: Peer) -> None:
        broken = Peer(peer.loop)
        broken.connection.departures = peer.connection.departures
        await broken.send(frame(b"first"))
        await peer.send(frame(b"second"))
        await peer.until(lambda: len(peer.requests) == 1 and len(broken.requests) == 1)
        no_bytes: Any = 1 / 3
        broken.requests[0][1].respond_with_others([no_bytes])
        peer.requests[0][1].respond_with_others([b"answer"])
        assert await peer.receive(6) == b"answer"
        assert broken.closed
        broken.client.close()

    run(scenario)


def test_who_went_away_before_the_end_of_the_turn_takes_nobody_along() -> None:
    async def scenario(peer: Peer) -> None:
        other = Peer(peer.loop)
        other.connection.departures = peer.connection.departures
        await peer.send(frame(b"stays"))
        await other.send(frame(b"goes"))
        await peer.until(lambda: len(peer.requests) == 1 and len(other.requests) == 1)
        other.requests[0][1].respond_with_others([b"never"])
        peer.requests[0][1].respond_with_others([b"answer"])
        other.connection.close()
        assert await peer.receive(6) == b"answer"
        other.client.close()

    run(scenario)


def test_a_frame_may_arrive_byte_by_byte() -> None:
    async def scenario(peer: Peer) -> None:
        for byte in frame(b"slow"):
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)
        await peer.until(lambda: len(peer.requests) == 1)
        assert peer.requests[0][0] == b"slow"

    run(scenario)


@pytest.mark.parametrize("size", [65531, 65532, 65533, 200_000, 5_000_000])
def test_large_frames_between_small_ones(size: int) -> None:
    async def scenario(peer: Peer) -> None:
        large = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        await peer.send(frame(b"a") + frame(large) + frame(b"b") + frame(large))
        await peer.until(lambda: len(peer.requests) == 4)
        assert [body for body, _ in peer.requests] == [b"a", large, b"b", large]

    run(scenario)


def test_slices_of_files_stand_between_bytes(tmp_path: Path) -> None:
    path = tmp_path / "segment.log"
    path.write_bytes(b"0123456789" * 100_000)

    async def scenario(peer: Peer) -> None:
        await peer.send(frame(b"fetch"))
        await peer.until(lambda: len(peer.requests) == 1)
        file = Disk().open(str(path))
        peer.requests[0][1].respond([b"<", FileSlice(file, 5, 900_000), b"|", FileSlice(file, 0, 3), b">"])
        received = await peer.receive(900_006)
        assert received == b"<" + path.read_bytes()[5:900_005] + b"|012>"

    run(scenario)


@pytest.mark.parametrize("size", [10, JOINED_BYTES - 20, JOINED_BYTES + 20])
def test_small_slices_leave_together_with_what_surrounds_them(tmp_path: Path, size: int) -> None:
    async def scenario(peer: Peer) -> None:
        path = tmp_path / "data"
        path.write_bytes(b"-" * 5 + b"x" * size)
        file = Disk().open(str(path))
        await peer.send(frame(b"fetch"))
        await peer.until(lambda: len(peer.requests) == 1)
        peer.requests[0][1].respond([b"head", FileSlice(file, 5, size), b"tail"])
        assert await peer.receive(size + 8) == b"head" + b"x" * size + b"tail"

    run(scenario)


def test_a_file_that_shrank_closes_the_connection_instead_of_hanging(tmp_path: Path) -> None:
    path = tmp_path / "segment.log"
    path.write_bytes(b"short")

    async def scenario(peer: Peer) -> None:
        await peer.send(frame(b"fetch"))
        await peer.until(lambda: len(peer.requests) == 1)
        peer.requests[0][1].respond([b"<", FileSlice(Disk().open(str(path)), 0, 100)])
        await peer.until(lambda: peer.closed)

    run(scenario)


@pytest.mark.parametrize("size", [-1, MAX_FRAME + 1, 0x7FFFFFFF, -0x80000000])
def test_an_impossible_size_closes_the_connection(size: int) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(struct.pack(">i", size))
        await peer.until(lambda: peer.closed)
        assert peer.malformed and not peer.requests

    run(scenario)


def test_a_lying_size_costs_no_memory() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(struct.pack(">i", MAX_FRAME) + b"only this")
        await asyncio.sleep(0.05)
        assert len(peer.connection._buffer) <= 256 * 1024

    run(scenario)


def test_a_coroutine_holds_back_the_requests_behind_it() -> None:
    async def scenario(peer: Peer) -> None:
        release = asyncio.Event()

        async def wait(body: bytes, slot: Slot) -> None:
            await release.wait()
            slot.respond([body])

        peer.coroutine = wait
        await peer.send(frame(b"first") + frame(b"second"))
        await asyncio.sleep(0.05)
        assert [body for body, _ in peer.requests] == [b"first"]
        release.set()
        assert await peer.receive(11) == b"firstsecond"

    run(scenario)


def test_a_callback_may_hold_back_the_requests_behind_it() -> None:
    async def scenario(peer: Peer) -> None:
        def bodies() -> list[bytes]:
            return [body for body, _ in peer.requests]

        peer.holds_back = True
        await peer.send(frame(b"first") + frame(b"second"))
        await asyncio.sleep(0.05)
        assert bodies() == [b"first"]
        peer.requests[0][1].respond([b"1"])
        await peer.until(lambda: bodies() == [b"first", b"second"])
        await peer.send(frame(b"third"))  # this one arrives while it must wait, and reading is paused
        await asyncio.sleep(0.05)
        peer.requests[1][1].respond([b"2"])
        await peer.until(lambda: bodies() == [b"first", b"second", b"third"])
        peer.requests[2][1].respond([b"3"])  # nothing has arrived meanwhile
        await peer.send(frame(b"fourth"))
        await peer.until(lambda: bodies()[-1] == b"fourth")
        assert await peer.receive(3) == b"123"

    run(scenario)


def test_an_answer_to_who_went_away_while_others_were_held_back() -> None:
    async def scenario(peer: Peer) -> None:
        peer.holds_back = True
        await peer.send(frame(b"first") + frame(b"second"))
        await peer.until(lambda: len(peer.requests) == 1)
        slot = peer.requests[0][1]
        peer.connection.close()
        slot.respond([b"1"])
        await asyncio.sleep(0.01)
        assert [body for body, _ in peer.requests] == [b"first"]
        assert await peer.receive(1) == b""

    run(scenario)


def test_who_does_not_read_is_not_read() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(frame(b"x") * (3 * MAX_OPEN_SLOTS))
        await asyncio.sleep(0.05)
        assert len(peer.requests) == MAX_OPEN_SLOTS
        for answered in range(3 * MAX_OPEN_SLOTS):
            await peer.until(lambda count=answered: len(peer.requests) > count)  # type: ignore[misc]
            peer.requests[answered][1].respond([b"y"])
        assert await peer.receive(3 * MAX_OPEN_SLOTS) == b"y" * (3 * MAX_OPEN_SLOTS)

    run(scenario)


def test_a_client_that_dies_mid_frame_costs_nothing() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(struct.pack(">i", 1000) + b"half")
        await asyncio.sleep(0.01)
        peer.client.close()
        await peer.until(lambda: peer.closed)
        assert not peer.requests

    run(scenario)


def test_answers_after_the_end_go_nowhere() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(frame(b"late"))
        await peer.until(lambda: len(peer.requests) == 1)
        peer.client.close()
        await peer.until(lambda: peer.closed)
        peer.requests[0][1].respond([b"nobody"])

    run(scenario)


def test_draining_answers_what_had_arrived_and_takes_nothing_else() -> None:
    """More than is handled at a time, and half a frame behind it, which nobody waits for."""

    async def scenario(peer: Peer) -> None:
        count = MAX_OPEN_SLOTS + 20
        await peer.send(frame(b"x") * count + frame(b"half")[:-1])
        await peer.until(lambda: len(peer.requests) == MAX_OPEN_SLOTS)
        assert not peer.connection.drain()
        for _, slot in peer.requests[:]:
            slot.respond([b"a"])
        assert not peer.connection.drain()
        await peer.until(lambda: len(peer.requests) == count)
        await peer.send(b"f")  # the rest of the last frame, too late
        for _, slot in peer.requests[MAX_OPEN_SLOTS:]:
            slot.respond([b"b"])
        assert await peer.receive(count) == b"a" * MAX_OPEN_SLOTS + b"b" * 20

    run(scenario)


def test_a_peer_that_never_pauses_does_not_hold_the_loop_while_draining() -> None:
    async def scenario(peer: Peer) -> None:
        async def answer_and_ask_again(body: bytes, slot: Slot) -> None:
            slot.respond([])
            peer.client.send(frame(body))

        peer.coroutine = answer_and_ask_again
        peer.client.send(frame(b"x"))
        assert not peer.connection.drain()
        assert 1 < len(peer.requests) < 1_000

    run(scenario)
