"""The load of the rebalance figures: all members of a group in one process, each no more than its connection.

Two hundred librdkafka consumers on two cores would measure librdkafka. A member here is the few messages of the
protocol, sent when the harness says so: the heartbeat that tells a member of the rebalance is sent at once after the
trigger, because when it comes otherwise is the client's own choice (`heartbeat.interval.ms`).

A round: one more member joins (the trigger), everybody hears of it, joins again, the leader assigns, everybody syncs.
Measured from the trigger to the last answer to SyncGroup. Then that member leaves, and the others settle again.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

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
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS = 79, 27
COORDINATOR_IS_BUSY = {14, 15, 16}
SESSION_MS = 60_000
SUBSCRIPTION = struct.pack(">hih5sii", 1, 1, 5, b"bench", -1, 0)
ASSIGNMENT = struct.pack(">hih5siii", 1, 1, 5, b"bench", 1, 0, -1)
SETTLE_SECONDS = 0.2


class Refused(RuntimeError):
    """An answer with an error that is not part of a rebalance."""


class LightMember:
    """One connection, one member of the group."""

    def __init__(self, group: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._group, self._reader, self._writer = group, reader, writer
        self.member_id, self.generation = "", -1

    @classmethod
    async def connect(cls, bootstrap: str, group: str) -> LightMember:
        host, port = bootstrap.split(":")
        return cls(group, *await asyncio.open_connection(host, int(port)))

    async def call(self, request: Message) -> Any:
        key, version, answer = APIS[type(request)]
        self._writer.write(framed(encode_request(key, request, version, 1, "bench")))
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        frame = await self._reader.readexactly(size)
        return decode_response(key, type(request), answer, version, frame)[1]

    async def wait_for_coordinator(self) -> None:
        """Until it is there, and has loaded."""
        while True:
            found = await self.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group]))
            probe = HeartbeatRequest(group_id=self._group, generation_id=0, member_id="nobody")
            is_there = not found.coordinators[0].error_code
            if is_there and (await self.call(probe)).error_code not in COORDINATOR_IS_BUSY:
                return
            await asyncio.sleep(0.05)

    async def join_and_sync(self) -> None:
        joined = await self._join()
        if joined.error_code == MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            joined = await self._join()
        _check(joined.error_code, "JoinGroup")
        self.member_id, self.generation = joined.member_id, joined.generation_id
        shares = [
            SyncGroupRequestAssignment(member_id=each.member_id, assignment=ASSIGNMENT)
            for each in joined.members
        ]
        synced = await self.call(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=self.generation,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=shares,
            )
        )
        if synced.error_code == REBALANCE_IN_PROGRESS:
            await self.join_and_sync()
        else:
            _check(synced.error_code, "SyncGroup")

    async def _join(self) -> Any:
        return await self.call(
            JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
            )
        )

    async def follow(self) -> None:
        """Heartbeats until the rebalance is noticed, then through it."""
        while True:
            answer = await self.call(
                HeartbeatRequest(
                    group_id=self._group, generation_id=self.generation, member_id=self.member_id
                )
            )
            if answer.error_code == REBALANCE_IN_PROGRESS:
                return await self.join_and_sync()
            _check(answer.error_code, "Heartbeat")
            await asyncio.sleep(0.001)

    async def leave(self) -> None:
        members = [MemberIdentity(member_id=self.member_id)]
        _check(
            (await self.call(LeaveGroupRequest(group_id=self._group, members=members))).error_code, "Leave"
        )
        self.member_id, self.generation = "", -1

    def close(self) -> None:
        self._writer.close()


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
