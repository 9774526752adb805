"""The load of the rebalance figures: all members of a group in one process, each no more than its connection.

Two hundred librdkafka consumers on two cores would measure librdkafka. A member here is the few messages of the
protocol, sent when the harness says so: the heartbeat that tells a member of the rebalance is sent at once after the
trigger, because when it comes otherwise is the client's own choice (`heartbeat.interval.ms`).

A round: one more member, which has its id already, joins (the trigger), everybody hears of it, joins again, the leader
assigns, everybody syncs. Measured from the trigger to the last answer to SyncGroup. Then that member leaves, and the
others settle again.

What a member does is a generator that gives requests and gets answers; a `Crowd` leads all of them at once over one
epoll. Nothing else stands between a member and its socket: a client shares the two cores with the broker, and its part
of the figure is to be small.
"""

from __future__ import annotations

import collections
import os
import select
import socket
import struct
import time
from collections.abc import Generator, Iterable
from typing import Any

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
PAUSE_SECONDS = 0.001
GIVE_UP_SECONDS = 60.0
RECEIVE_BYTES = 4096
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


Talk = Generator[bytes | None, bytes, None]
"""Gives a request and gets its answer; None stands for a short pause, after which it gets nothing."""


class LightMember:
    """One connection, one member of the group. Of most answers it reads no more than the error code."""

    _heartbeat: Template
    _sync: Template
    _join: bytes

    def __init__(self, bootstrap: str, group: str) -> None:
        host, port = bootstrap.split(":")
        self._group = group
        self._received = b""
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.member_id, self.generation = "", -1
        self._prepare()

    def receive(self) -> bytes | None:
        """A whole answer without its size, or None if it has not come yet."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        if self._received:
            data = self._received + data
        if len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4]):
            self._received = data
            return None
        self._received = b""
        return data[4:]

    def _prepare(self) -> None:
        """Everything that a rebalance sends, as far as it is known before: encoding is no part of the figure."""
        who = {"group_id": self._group, "member_id": self.member_id}
        kind = {"protocol_type": "consumer"}
        times = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": SESSION_MS}
        protocols = [JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)]
        join = JoinGroupRequest(**who, **kind, **times, protocols=protocols)
        self._join = _encoded(join)
        self._heartbeat = Template(HeartbeatRequest(**who, generation_id=ANY_GENERATION))
        self._sync = Template(
            SyncGroupRequest(**who, **kind, generation_id=ANY_GENERATION, protocol_name="range")
        )

    def wait_for_coordinator(self) -> Talk:
        """Until it is there, and has loaded: before, Kafka answers a heartbeat with no error at all."""
        while True:
            question = FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group])
            found = _decoded(question, (yield _encoded(question)))
            probe = HeartbeatRequest(group_id=self._group, generation_id=0, member_id="nobody")
            is_there = not found.coordinators[0].error_code
            if is_there and _error((yield _encoded(probe))) == UNKNOWN_MEMBER_ID:
                return
            yield None

    def ask_for_id(self) -> Talk:
        """The first JoinGroup of a newcomer is answered with an id, and nothing else happens."""
        answer = _decode_joined((yield self._join))
        if answer.error_code != MEMBER_ID_REQUIRED:
            raise Refused(f"a newcomer was answered with error {answer.error_code}")
        self.member_id = answer.member_id
        self._prepare()

    def join_and_sync(self) -> Talk:
        if not self.member_id:
            yield from self.ask_for_id()
        synced = REBALANCE_IN_PROGRESS
        while synced == REBALANCE_IN_PROGRESS:
            joined = yield self._join
            _check(_error(joined), "JoinGroup")
            self.generation = int.from_bytes(joined[AFTER_ERROR : AFTER_ERROR + 4])
            is_follower = joined.endswith(NO_MEMBERS)
            synced = _error((yield self._sync.of(self.generation) if is_follower else self._assigned(joined)))
        _check(synced, "SyncGroup")

    def _assigned(self, joined: bytes) -> bytes:
        """The leader's SyncGroup."""
        members = _decode_joined(joined).members
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=each.member_id, assignment=ASSIGNMENT)
                for each in members
            ],
        )
        return _encoded(request)

    def follow(self) -> Talk:
        """Heartbeats until the rebalance is noticed, then through it."""
        while True:
            code = _error((yield self._heartbeat.of(self.generation)))
            if code == REBALANCE_IN_PROGRESS:
                yield from self.join_and_sync()
                return
            _check(code, "Heartbeat")
            yield None

    def leave(self) -> Talk:
        request = LeaveGroupRequest(group_id=self._group, members=[MemberIdentity(member_id=self.member_id)])
        _check(_decoded(request, (yield _encoded(request))).error_code, "LeaveGroup")
        self.member_id, self.generation = "", -1
        self._prepare()


class Crowd:
    """Members that talk to the broker at the same time."""

    def __init__(self, members: list[LightMember]) -> None:
        self._members = {member.socket.fileno(): member for member in members}
        self._ready = select.epoll()
        for number in self._members:
            self._ready.register(number, select.EPOLLIN)
        self._talks: dict[int, Talk] = {}
        self._resting: collections.deque[tuple[float, int]] = collections.deque()
        """Until when, and who."""

    def converse(self, talks: Iterable[tuple[LightMember, Talk]]) -> None:
        """Until all of them have said everything."""
        self._talks = {member.socket.fileno(): talk for member, talk in talks}
        for number in list(self._talks):
            self._go_on(number, None)
        while self._talks:
            resting = self._resting
            patience = max(0.0, resting[0][0] - time.monotonic()) if resting else GIVE_UP_SECONDS
            heard = self._ready.poll(patience)
            if not (heard or resting):
                raise TimeoutError(f"{len(self._talks)} members got no answer in {GIVE_UP_SECONDS:.0f} s")
            for number, _ in heard:
                answer = self._members[number].receive()
                if answer is not None:
                    self._go_on(number, answer)
            while resting and resting[0][0] <= time.monotonic():
                self._go_on(resting.popleft()[1], None)

    def _go_on(self, number: int, answer: Any) -> None:
        try:
            request = self._talks[number].send(answer)
        except StopIteration:
            del self._talks[number]
            return
        if request is None:
            self._resting.append((time.monotonic() + PAUSE_SECONDS, number))
        else:
            self._members[number].socket.send(request)


def _encoded(request: Message) -> bytes:
    key, version, _ = APIS[type(request)]
    return bytes(framed(encode_request(key, request, version, 1, "bench")))


def _decoded(request: Message, frame: bytes) -> Any:
    key, version, answer = APIS[type(request)]
    return decode_response(key, type(request), answer, version, frame)[1]


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
    """Nanoseconds of `rounds` rebalances of a group of `members` members, run on `cores` if that is said."""
    if "cores" in job:
        os.sched_setaffinity(0, job["cores"])
    connected = [LightMember(job["bootstrap"], job["group"]) for _ in range(job["members"])]
    *settled, last = connected
    first, crowd = settled[0], Crowd(connected)
    crowd.converse([(first, first.wait_for_coordinator())])
    crowd.converse([(first, first.join_and_sync())])
    for number in range(1, len(settled)):  # doubling the group would cost as many rebalances as members
        if number & (number - 1) == 0:
            newcomers = settled[number : 2 * number]
            # Those with an id are waited for, so that all come into one generation.
            crowd.converse((each, each.ask_for_id()) for each in newcomers)
            joining = [(each, each.join_and_sync()) for each in newcomers]
            crowd.converse([*joining, *((each, each.follow()) for each in settled[:number])])
    assert len({each.generation for each in settled}) == 1
    wait_go()
    taken = []
    for _ in range(job["rounds"]):
        time.sleep(SETTLE_SECONDS)
        crowd.converse([(last, last.ask_for_id())])
        began = time.monotonic_ns()
        crowd.converse([(last, last.join_and_sync()), *((each, each.follow()) for each in settled)])
        taken.append(time.monotonic_ns() - began)
        crowd.converse([(last, last.leave())])
        crowd.converse((each, each.follow()) for each in settled)
    for each in connected:
        each.socket.close()
    return {"latencies": taken}
