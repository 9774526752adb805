"""One client connection on a raw socket: frames in, responses out, in order.

Reading. Bytes are received straight into one buffer that the connection keeps. A small frame is read together
with whatever follows it; a large one is read to its own end, so that its bytes are never moved. The buffer
grows with what has *arrived*, not with what a frame claims, so a lying size costs nothing.

Writing. A response is a list of bytes and slices of files; slices leave by `sendfile`, except where the whole
response is so small that copying it costs less than a system call for each of its pieces. Each request owns a
`Slot` in a queue, and a response waits until all earlier slots have theirs: pipelined requests are answered in
order however long each takes.

Back-pressure. A client that does not read its answers is not read either: parsing stops while too many slots
are open or too much output is queued. A request whose handler has to wait also stops it (the next request may
depend on its effect), be it a coroutine or a callback that says so (`hold_back_others`), while produce and fetch are
handled on arrival and may wait side by side.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable
from typing import Any

from tidemill.model.errors import MalformedMessage
from tidemill.wire.frames import SIZE, FileSlice, Piece, Response, piece_size

logger = logging.getLogger(__name__)

SMALL_READ = 64 * 1024
KEPT_BUFFER = 4 * 1024 * 1024
"""A buffer that one large request blew up beyond this is given back."""
MAX_OPEN_SLOTS = 128
MAX_QUEUED_PIECES = 256
MAX_QUEUED_BYTES = 1024 * 1024
"""Output in memory that a peer has not taken yet; slices of files take no memory and do not count."""
MAX_BYTES_PER_TURN = 4 * 1024 * 1024
"""Most that one connection sends before others get their turn."""

READS_PER_DRAIN = 64
"""A peer that sends without end must not hold up the others while the broker stops."""

LARGE_ANSWER_BYTES = 4 * 1024 * 1024
"""Who is answered with so much at a time reads a backlog, and gets the wide send buffer: when its socket runs dry, the
loop may be busy with others."""

JOINED_BYTES = 32 * 1024
"""Up to here a response with slices of files is copied together: cheaper than a system call for each piece."""

Handle = Callable[[memoryview, str, "Slot"], Coroutine[Any, Any, None] | None]
"""Takes a frame, the address of its peer, and the place of its answer."""


def _nothing() -> None:
    """Nobody waits."""


def _bytes_of(piece: Piece) -> bytes | bytearray:
    return piece.file.read(piece.position, piece.length) if isinstance(piece, FileSlice) else piece


@types.coroutine
def _go_on(coroutine: Coroutine[Any, Any, None], waited_for: Any) -> Generator[Any, Any, None]:
    """The rest of a coroutine that was started by hand: hand on what it waits for, and what comes of it."""
    while True:
        try:
            try:
                sent = yield waited_for
            except BaseException as error:
                waited_for = (
                    None  # it holds the error, and the error this frame: only the collector would free them
                )
                waited_for = coroutine.throw(error)
            else:
                waited_for = coroutine.send(sent)
        except StopIteration:
            return


class Departures:
    """Connections whose answers leave at the end of this turn of the loop, one right after the other.

    Members of a group wait for each other, and many of them may be one process. Answered one by one between the
    requests of the others, that process would be woken for each.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: list[Connection] = []

    def add(self, connection: Connection) -> None:
        if not self._ready:
            self._loop.call_soon(self._leave)
        self._ready.append(connection)

    def _leave(self) -> None:
        """An error of one must not keep the answers of others back."""
        ready, self._ready = self._ready, []
        for connection in ready:
            try:
                connection.depart()
            except Exception:
                logger.exception("answers cannot be sent: their connection is closed")
                connection.close()


class Slot:
    """The place of one response in its connection's order."""

    __slots__ = ("_connection", "is_ready", "on_abandoned", "response")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.on_abandoned: Callable[[], object] = _nothing
        """Called when the connection ends before the response: whoever waits for something need not."""
        self.is_ready = False
        self.response: Response = []

    def respond(self, response: Response) -> None:
        """Answer; an empty list stands for a request that has no response."""
        self._fill(response)
        connection = self._connection
        connection.send_ready()
        connection._go_on_after(self)

    def respond_with_others(self, response: Response) -> None:
        """Answer at the end of this turn of the loop, with all who are answered in it."""
        self._fill(response)
        connection = self._connection
        connection.departures.add(connection)
        if connection._is_held or connection._held_for is self:
            connection._go_on_after(self)

    def _fill(self, response: Response) -> None:
        assert not self.is_ready
        self.response = response
        self.is_ready = True
        # Slot and waiting operation would hold each other otherwise, and only the collector could free them.
        self.on_abandoned = _nothing

    def hold_back_others(self) -> None:
        """Take no further request of this connection until this one is answered."""
        assert not self.is_ready
        self._connection._held_for = self

    def close_connection(self) -> None:
        self._connection.close()

    def when_connection_ends(self, key: Hashable, callback: Callable[[], object]) -> Callable[[], object]:
        at_end = self._connection.at_end
        at_end[key] = callback
        return lambda: at_end.pop(key, None)


class Connection:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        handle: Handle,
        max_frame_bytes: int,
        on_close: Callable[[Connection], None],
        on_malformed: Callable[[Connection, str], None],
        departures: Departures,
        peer_address: str = "",
    ) -> None:
        self._loop = loop
        self.departures = departures
        self.peer_address = peer_address
        self._socket = sock
        self._fd = sock.fileno()
        self._handle = handle
        self._max_frame_bytes = max_frame_bytes
        self._on_close = on_close
        self._on_malformed = on_malformed
        self._buffer = bytearray(SMALL_READ)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._slots: deque[Slot] = deque()
        self._output: deque[Piece] = deque()
        self._sent_of_first = 0
        self._queued_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._held_for: Slot | None = None
        """The request that must be answered before the next one is taken."""
        self._is_reading = False
        self._is_held = False
        """Frames may lie in the buffer that are not handled yet: something is waited for first."""
        self._is_writing = False
        self._is_draining = False
        self._has_all_input = False
        """While draining: everything that had arrived was taken."""
        self.wide_buffer_bytes = 0
        """The send buffer for large answers; 0 where there is none, or it is set already."""
        self.is_closed = False
        self.at_end: dict[Hashable, Callable[[], object]] = {}
        """What depends on this connection and ends with it."""
        self.received_bytes = 0
        self.request_count = 0
        self.is_active = False
        """Something came or went since the last sweep, which takes this back."""
        self.last_active = loop.time()
        self.frame_started_at: float | None = self.last_active
        """When the frame that is not complete yet began; the first one begins with the connection."""
        self.frame_bytes = 0

    def start(self) -> None:
        self._resume_reading()

    # -- reading --------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if self._is_held:
            self._pause_reading()  # only now, as most clients wait for their answer before they ask again
            return
        try:
            room = self._view[self._end : self._read_limit()] if self._end else self._view
            received = self._socket.recv_into(room)
        except BlockingIOError:
            self._has_all_input = self._is_draining
            return
        except OSError:
            self.close()
            return
        if not received:
            self.close()
            return
        self._end += received
        self.received_bytes += received
        self.is_active = True
        self._handle_frames()

    def _read_limit(self) -> int:
        """Where this read must stop: at the end of a large frame, else at the end of the buffer."""
        have = self._end - self._start
        if have >= 4:
            frame_end: int = self._start + 4 + SIZE.unpack_from(self._buffer, self._start)[0]
            if frame_end - self._end > SMALL_READ:
                return min(frame_end, len(self._buffer))
        return len(self._buffer)

    def _handle_frames(self) -> None:
        """Handle every whole frame, unless something must be waited for first."""
        buffer = self._buffer
        while not self.is_closed:
            have = self._end - self._start
            if have < 4 or self._must_wait():
                break
            size = SIZE.unpack_from(buffer, self._start)[0]
            if not 0 <= size <= self._max_frame_bytes:
                self._on_malformed(self, f"a frame claims {size} bytes, {self._max_frame_bytes} are allowed")
                self._break_off()
                return
            if have < size + 4:
                break
            start = self._start + 4
            self._start = end = start + size
            self.frame_started_at = None
            self._handle_frame(self._view[start:end])
        if not self.is_closed:
            self._is_held = self._must_wait()
            self._after_frames()

    def _after_frames(self) -> None:
        """Nothing more can be handled now: keep the rest of the bytes where the next read can go on."""
        if self._start < self._end:
            self._note_progress()
            self._make_room()
            return
        self._start = self._end = 0
        self.frame_bytes = 0
        if self.request_count:
            self.frame_started_at = None
        if len(self._buffer) > KEPT_BUFFER:
            self._replace_buffer(SMALL_READ)

    def _handle_frame(self, frame: memoryview) -> None:
        self.request_count += 1
        slot = Slot(self)
        self._slots.append(slot)
        try:
            coroutine = self._handle(frame, self.peer_address, slot)
        except Exception as error:
            self._fail(error)
            return
        if coroutine is not None:
            self._begin(coroutine)

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run it up to where it waits, if it does: most requests are answered without, and need no task."""
        try:
            waited_for = coroutine.send(None)
        except StopIteration:
            return
        except Exception as error:
            self._fail(error)
            return
        self._task = self._loop.create_task(self._run(coroutine, waited_for))

    async def _run(self, coroutine: Coroutine[Any, Any, None], waited_for: Any) -> None:
        try:
            await _go_on(coroutine, waited_for)
        except Exception as error:
            self._fail(error)
        finally:
            self._task = None
        self._resume()

    def _fail(self, error: Exception) -> None:
        """A request that has no answer ends its connection."""
        if isinstance(error, MalformedMessage):
            self._on_malformed(self, str(error))
        else:
            logger.error("a request failed without an answer: its connection is closed", exc_info=error)
        self._break_off()

    def _break_off(self) -> None:
        """Close it; requests before the bad one keep the answers they have."""
        self.send_ready()
        self.close()

    def _must_wait(self) -> bool:
        """Whether the next frame has to; where nothing is open, as between most requests, nothing is asked further."""
        return self._task is not None or (
            bool(self._slots or self._output)
            and (
                self._held_for is not None
                or len(self._slots) >= MAX_OPEN_SLOTS
                or len(self._output) >= MAX_QUEUED_PIECES
                or self._queued_bytes >= MAX_QUEUED_BYTES
            )
        )

    def _make_room(self) -> None:
        """Move an incomplete frame to the front of a buffer that can hold more of it."""
        have = self._end - self._start
        needed = 4 + (SIZE.unpack_from(self._buffer, self._start)[0] if have >= 4 else 0)
        if needed > len(self._buffer) and 2 * have > len(self._buffer):
            self._replace_buffer(min(needed, 4 * have))
        elif self._start and (self._start + needed > len(self._buffer) or self._end == len(self._buffer)):
            self._view[:have] = self._view[self._start : self._end]
            self._start, self._end = 0, have

    def release_buffer(self) -> None:
        """Called when the connection rests: keep no more than what a small request needs."""
        if self._start == self._end and len(self._buffer) > SMALL_READ and not self._slots:
            self._replace_buffer(SMALL_READ)

    def _replace_buffer(self, size: int) -> None:
        have = self._end - self._start
        buffer = bytearray(size)
        view = memoryview(buffer)
        view[:have] = self._view[
            self._start : self._end
        ]  # assigned to the bytearray, it would be copied twice
        self._buffer = buffer
        self._view = view
        self._start, self._end = 0, have

    def _note_progress(self) -> None:
        """Remember since when a frame is incomplete, so that a sweep can drop who never completes one."""
        if self._is_held:
            self.frame_started_at = None  # held up by us, not by the peer
        elif self.frame_started_at is None:
            self.frame_started_at = self._loop.time()
        self.frame_bytes = self._end - self._start

    def _resume(self) -> None:
        """Go on with frames that were received while something had to be waited for."""
        if self.is_closed or self._must_wait():
            return
        self._handle_frames()
        if not self.is_closed and not self._is_held:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if not self._is_reading and not self._is_draining:
            self._loop.add_reader(self._fd, self._on_readable)
            self._is_reading = True

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._loop.remove_reader(self._fd)
            self._is_reading = False

    # -- writing --------------------------------------------------------------------------------------

    def _go_on_after(self, slot: Slot) -> None:
        """The request is answered; others may have waited for that."""
        if slot is self._held_for:
            self._held_for = None
        if self._is_held and self._task is None and not self.is_closed:
            self._resume_soon()

    def _resume_soon(self) -> None:
        """Not at once: whoever answers has others to answer."""
        if self._is_reading and self._start == self._end and not self._must_wait():
            self._is_held = False  # nothing came meanwhile
        else:
            self._loop.call_soon(self._resume)

    def depart(self) -> None:
        """The turn of the loop is over: send what is answered, and go on with what had to wait for room."""
        self.send_ready()
        if self._is_held:
            self._resume()

    def send_ready(self) -> None:
        """Queue the responses at the head of the line and send what the socket takes."""
        if self.is_closed:
            return
        slots, output = self._slots, self._output
        while slots and slots[0].is_ready:
            response = slots.popleft().response
            if len(response) > 1:
                response = self._fit(response)
            if not (slots or output) and len(response) == 1 and not isinstance(response[0], FileSlice):
                self._send_alone(response[0])
                return
            output.extend(response)
            for piece in response:
                if not isinstance(piece, FileSlice):
                    self._queued_bytes += len(piece)
        if output and not self._is_writing:
            self._send()

    def _send_alone(self, piece: bytes | bytearray) -> None:
        """Most answers are one piece, with none before it and none behind, and the socket takes them whole."""
        self.is_active = True
        try:
            sent = self._socket.send(piece)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(piece):
            self._output.append(piece)
            self._queued_bytes += len(piece)
            self._sent_of_first = sent
            self._watch_writable(True)

    def _fit(self, response: Response) -> Response:
        """One piece of a response whose records are few: one system call, and the client wakes up once.

        One that is large gets the send buffer for it.
        """
        size = sum(map(piece_size, response))
        if size > JOINED_BYTES:
            if self.wide_buffer_bytes and size > LARGE_ANSWER_BYTES:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.wide_buffer_bytes)
                self.wide_buffer_bytes = 0
            return response
        try:
            joined = b"".join([_bytes_of(piece) for piece in response])
        except OSError:
            return response  # sending it will fail as well, and says so
        return [joined] if len(joined) == size else response

    def _send(self) -> None:
        budget = MAX_BYTES_PER_TURN
        output = self._output
        try:
            while output and budget > 0:
                budget -= self._send_first()
                if self._sent_of_first:
                    break  # taken in part: the socket is full, and need not say so again
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self.is_active = True
        self._watch_writable(bool(output))

    def _send_first(self) -> int:
        """One system call for the first piece; small pieces wait for what follows (MSG_MORE)."""
        output = self._output
        piece = output[0]
        done = self._sent_of_first
        if isinstance(piece, FileSlice):
            size = piece.length
            sent = os.sendfile(self._fd, piece.file.fileno(), piece.position + done, size - done)
            if sent == 0:
                raise OSError("a file became shorter than a response said")
        else:
            size = len(piece)
            flags = socket.MSG_MORE if len(output) > 1 else 0
            sent = self._socket.send(memoryview(piece)[done:] if done else piece, flags)
        if done + sent == size:
            output.popleft()
            self._sent_of_first = 0
            if not isinstance(piece, FileSlice):
                self._queued_bytes -= size
        else:
            self._sent_of_first = done + sent
        return sent

    def _watch_writable(self, wanted: bool) -> None:
        if wanted and not self._is_writing:
            self._loop.add_writer(self._fd, self._on_writable)
        elif not wanted and self._is_writing:
            self._loop.remove_writer(self._fd)
        self._is_writing = wanted

    def _on_writable(self) -> None:
        self._send()
        if self._is_held and not self.is_closed:
            self._resume()

    # -- the end --------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Nothing asked that is not answered, nothing answered that is not sent."""
        return not self._slots and not self._output

    @property
    def is_reset(self) -> bool:
        """Whether the peer reset the connection; uvloop then stops watching it without telling anybody."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def drain(self) -> bool:
        """Take what has arrived, and no more than that; True when all of it is answered.

        Called again until it is true: frames beyond what is handled at a time, and bytes that the kernel still holds,
        wait for the answers before them. A socket that is closed with unread bytes is reset, and the reset may take
        answers with it that are still on their way.
        """
        self._is_draining = True
        self._pause_reading()
        for _ in range(READS_PER_DRAIN):
            if self.is_closed or self._is_held or self._has_all_input:
                break
            self._on_readable()
        return self.is_closed or (self._has_all_input and self.is_idle)

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._pause_reading()
        self._watch_writable(False)
        if self._task is not None:
            self._task.cancel()
        abandoned = list(self._slots)
        self._slots.clear()
        self._held_for = None
        self._output.clear()
        self._buffer = bytearray()
        self._view = memoryview(b"")
        self._socket.close()
        self._on_close(self)
        for slot in abandoned:
            slot.on_abandoned()
        for callback in list(self.at_end.values()):
            callback()
