"""The load of the rebalance figures: all members of a group in one process, each no more than its connection.

Two hundred librdkafka consumers on two cores would measure librdkafka. A member here is the few messages of the
protocol, sent when the harness says so: the heartbeat that tells a member of the rebalance is sent at once after the
trigger, because when it comes otherwise is the client's own choice (`heartbeat.interval.ms`).

A round: one more member, which has its id already, joins (the trigger), everybody hears of it, joins again, the leader
assigns, everybody syncs. Measured from the trigger to the last answer to SyncGroup. Then that member leaves, and the
others settle again.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any, cast

import uvloop

from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidemill.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidemill.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tidemill.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidemill.wire.requests import decode_response, encode_request, framed
from tidemill.wire.schema import Message

# request -> key, version, answer
APIS: dict[type[Message], tuple[int, int, type[Message]]] = {
    FindCoordinatorRequest: (10, 4, FindCoordinatorResponse),
    JoinGroupRequest: (11, 9, JoinGroupResponse),
    HeartbeatRequest: (12, 4, HeartbeatResponse),
    LeaveGroupRequest: (13, 5, LeaveGroupResponse),
    SyncGroupRequest: (14, 5, SyncGroupResponse),
}
UNKNOWN_MEMBER_ID, MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS = 25, 79, 27
SESSION_MS = 60_000
SUBSCRIPTION = struct.pack(">hih5sii", 1, 1, 5, b"bench", -1, 0)
ASSIGNMENT = struct.pack(">hih5siii", 1, 1, 5, b"bench", 1, 0, -1)
SETTLE_SECONDS = 0.2
ANY_GENERATION = 0x7E7D7C7B
ERROR, AFTER_ERROR = 9, 11
NO_MEMBERS = b"\x01\x00"
"""How the answer to a JoinGroup of a follower ends: an empty list and no tags."""


class Refused(RuntimeError):
    """An answer with an error that is not part of a rebalance."""


class Template:
    """A request that is encoded once; of its copies only the generation differs."""

    def __init__(self, request: Message) -> None:
        key, version, _ = APIS[type(request)]
        frame = framed(encode_request(key, request, version, 1, "bench"))
        self._head, self._tail = bytes(frame).split(ANY_GENERATION.to_bytes(4))

    def of(self, generation: int) -> bytes:
        return self._head + generation.to_bytes(4) + self._tail


class LightMember(asyncio.Protocol):
    """One connection, one member of the group. Of most answers it reads no more than the error code."""

    _transport: asyncio.Transport
    _answer: asyncio.Future[bytes]
    _heartbeat: Template
    _sync: Template
    _join: bytes

    def __init__(self, group: str) -> None:
        self._group = group
        self._received = b""
        self.member_id, self.generation = "", -1
        self._prepare()

    @classmethod
    async def connect(cls, bootstrap: str, group: str) -> LightMember:
        host, port = bootstrap.split(":")
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: cls(group), host, int(port)))[1]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) >= 4 and len(self._received) == 4 + int.from_bytes(self._received[:4]):
            frame, self._received = self._received[4:], b""
            self._answer.set_result(frame)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the broker closed the connection"))

    def _prepare(self) -> None:
        """Everything that a rebalance sends, as far as it is known before: encoding is no part of the figure."""
        who = {"group_id": self._group, "member_id": self.member_id}
        kind = {"protocol_type": "consumer"}
        times = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": SESSION_MS}
        protocols = [JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)]
        join = JoinGroupRequest(**who, **kind, **times, protocols=protocols)
        self._join = framed(encode_request(11, join, 9, 1, "bench"))
        self._heartbeat = Template(HeartbeatRequest(**who, generation_id=ANY_GENERATION))
        self._sync = Template(
            SyncGroupRequest(**who, **kind, generation_id=ANY_GENERATION, protocol_name="range")
        )

    def _send(self, frame: bytes) -> asyncio.Future[bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        return self._answer

    async def call(self, request: Message) -> Any:
        key, version, answer = APIS[type(request)]
        frame = await self._send(framed(encode_request(key, request, version, 1, "bench")))
        return decode_response(key, type(request), answer, version, frame)[1]

    async def wait_for_coordinator(self) -> None:
        """Until it is there, and has loaded: before, Kafka answers a heartbeat with no error at all."""
        while True:
            found = await self.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group]))
            probe = HeartbeatRequest(group_id=self._group, generation_id=0, member_id="nobody")
            is_there = not found.coordinators[0].error_code
            if is_there and (await self.call(probe)).error_code == UNKNOWN_MEMBER_ID:
                return
            await asyncio.sleep(0.05)

    async def ask_for_id(self) -> None:
        """The first JoinGroup of a newcomer is answered with an id, and nothing else happens."""
        answer = _decode_joined(await self._send(self._join))
        if answer.error_code != MEMBER_ID_REQUIRED:
            raise Refused(f"a newcomer was answered with error {answer.error_code}")
        self.member_id = answer.member_id
        self._prepare()

    async def join_and_sync(self) -> None:
        if not self.member_id:
            await self.ask_for_id()
        joined = await self._send(self._join)
        _check(_error(joined), "JoinGroup")
        self.generation = int.from_bytes(joined[AFTER_ERROR : AFTER_ERROR + 4])
        if joined.endswith(NO_MEMBERS):
            synced = _error(await self._send(self._sync.of(self.generation)))
        else:
            synced = await self._assign(_decode_joined(joined))
        if synced == REBALANCE_IN_PROGRESS:
            await self.join_and_sync()
        else:
            _check(synced, "SyncGroup")

    async def _assign(self, joined: JoinGroupResponse) -> int:
        """The leader's SyncGroup; the error it is answered with."""
        shares = [
            SyncGroupRequestAssignment(member_id=each.member_id, assignment=ASSIGNMENT)
            for each in joined.members
        ]
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=shares,
        )
        code: int = (await self.call(request)).error_code
        return code

    async def follow(self) -> None:
        """Heartbeats until the rebalance is noticed, then through it."""
        while True:
            code = _error(await self._send(self._heartbeat.of(self.generation)))
            if code == REBALANCE_IN_PROGRESS:
                return await self.join_and_sync()
            _check(code, "Heartbeat")
            await asyncio.sleep(0.001)

    async def leave(self) -> None:
        members = [MemberIdentity(member_id=self.member_id)]
        _check(
            (await self.call(LeaveGroupRequest(group_id=self._group, members=members))).error_code, "Leave"
        )
        self.member_id, self.generation = "", -1
        self._prepare()

    def close(self) -> None:
        self._transport.close()


def _error(frame: bytes) -> int:
    """Where the answers to JoinGroup, SyncGroup and Heartbeat have it: after correlation, tags and throttle time."""
    return int.from_bytes(frame[ERROR:AFTER_ERROR], signed=True)


def _decode_joined(frame: bytes) -> JoinGroupResponse:
    answer = decode_response(11, JoinGroupRequest, JoinGroupResponse, 9, frame)[1]
    assert isinstance(answer, JoinGroupResponse)
    return answer


def _check(code: int, what: str) -> None:
    if code:
        raise Refused(f"{what} was answered with error {code}")


def rebalance(job: dict[str, Any], wait_go: Any) -> dict[str, Any]:
    """Nanoseconds of `rounds` rebalances of a group that has `members` members in the end."""
    with asyncio.Runner(
        loop_factory=uvloop.new_event_loop
    ) as runner:  # or the client would be what is measured
        return runner.run(_rebalance(job, wait_go))


async def _rebalance(job: dict[str, Any], wait_go: Any) -> dict[str, Any]:
    connected = [await LightMember.connect(job["bootstrap"], job["group"]) for _ in range(job["members"])]
    *settled, last = connected
    await settled[0].wait_for_coordinator()
    await settled[0].join_and_sync()
    for number in range(1, len(settled)):  # doubling the group would cost as many rebalances as members
        if number & (number - 1) == 0:
            newcomers = settled[number : 2 * number]
            await asyncio.gather(
                *(each.join_and_sync() for each in newcomers), *(each.follow() for each in settled[:number])
            )
            await _settle(settled[: 2 * number])
    wait_go()
    taken = []
    for _ in range(job["rounds"]):
        await asyncio.sleep(SETTLE_SECONDS)
        await last.ask_for_id()
        began = time.monotonic_ns()
        await asyncio.gather(last.join_and_sync(), *(each.follow() for each in settled))
        taken.append(time.monotonic_ns() - began)
        await last.leave()
        await asyncio.gather(*(each.follow() for each in settled))
    for each in connected:
        each.close()
    return {"latencies": taken}


async def _settle(members: list[LightMember]) -> None:
    """A newcomer that came after the others had joined makes one more rebalance: until all are in one generation."""
    while len({each.generation for each in members}) > 1:
        newest = max(each.generation for each in members)
        await asyncio.gather(*(each.follow() for each in members if each.generation < newest))
