"""The one judge of fault tests: what processes did and saw, and which promises that breaks.

A history is a list of operations, each by one process, with what came of it:

    OK      it happened                 FAIL    it did not happen             INFO    nobody knows (a time-out, a kill)

and with its parts: sends (`Send`), what was polled (`Poll`), `Assign`, after which the process polls from new
positions, and `Commit`, how far a group has read; the process of a commit is the group, the order that of its log. An
operation with more than one part is a transaction. Values are unique per key; a key is a partition.

    history = [Operation("w", OK, [Send("p0", "a", 0)]), Operation("r", OK, [Assign(), Poll("p0", [(0, "b")])])]
    check(history)    # [Anomaly("inconsistent", "p0", "offset 0 holds a and b"), Anomaly("unseen", ...)]

What is found, per key:

    inconsistent    two values at one offset
    duplicate       one value at two offsets
    aborted read    a value that was read, of an operation that failed
    lost            a committed value below the highest offset that anybody read, and nobody read it
    unseen          a committed value that nobody read, at the end
    skip            a consumer went past a value that others read, within one assignment
    non-monotonic   a consumer went back, within one assignment
    commit back     a group committed a lower offset than before
    circular        transactions that each read what the other wrote

Offsets may have gaps (markers, aborted messages): a consumer's next position is the next *known* offset.

Limits: a send that nobody knows of (INFO) may be there or not, once. Whoever writes a history must poll everything
from the beginning after the trouble, or `unseen` means nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Status(enum.Enum):
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


OK, FAIL, INFO = Status


class Send(NamedTuple):
    key: str
    value: str
    offset: int | None = None


class Poll(NamedTuple):
    key: str
    read: list[tuple[int, str]]


class Assign(NamedTuple):
    """From here on the process reads from other positions."""


class Commit(NamedTuple):
    """The group of this name goes on from this offset."""

    key: str
    offset: int


Part = Send | Poll | Assign | Commit


class Operation(NamedTuple):
    process: str
    status: Status
    parts: list[Part]


class Anomaly(NamedTuple):
    kind: str
    key: str
    what: str


History = list[Operation]
Values = dict[int, set[str]]


def check(history: History) -> list[Anomaly]:
    keys = sorted({part.key for _, part in _parts(history) if not isinstance(part, Assign)})
    found = [anomaly for key in keys for anomaly in _check_key(_only(history, key), key)]
    return found + list(_circles(history))


def _only(history: History, key: str) -> History:
    """What concerns this key."""
    wanted = (
        Operation(process, status, [part for part in parts if isinstance(part, Assign) or part.key == key])
        for process, status, parts in history
    )
    return [operation for operation in wanted if operation.parts]


def _parts(history: History) -> Iterator[tuple[Operation, Part]]:
    return ((operation, part) for operation in history for part in operation.parts)


def _sends(history: History, key: str, *statuses: Status) -> Iterator[Send]:
    for operation, part in _parts(history):
        if isinstance(part, Send) and part.key == key and operation.status in statuses:
            yield part


def _polls(history: History, key: str) -> Iterator[tuple[int, str]]:
    for _, part in _parts(history):
        if isinstance(part, Poll) and part.key == key:
            yield from part.read


def _check_key(history: History, key: str) -> Iterator[Anomaly]:
    read = list(_polls(history, key))
    values: Values = {}
    for offset, value in [(send.offset, send.value) for send in _sends(history, key, OK)] + read:
        if offset is not None:
            values.setdefault(offset, set()).add(value)
    yield from _clashes(key, values)
    yield from _aborted_reads(history, key)
    yield from _missing(history, key, read, values)
    yield from _leaps(history, key, sorted({offset for offset, _ in read}))
    yield from _commits_back(history, key)


def _clashes(key: str, values: Values) -> Iterator[Anomaly]:
    places: dict[str, list[int]] = {}
    for offset, held in sorted(values.items()):
        if len(held) > 1:
            yield Anomaly("inconsistent", key, f"offset {offset} holds {' and '.join(sorted(held))}")
        for value in held:
            places.setdefault(value, []).append(offset)
    for value, offsets in places.items():
        if len(offsets) > 1:
            yield Anomaly("duplicate", key, f"{value} is at {offsets}")


def _aborted_reads(history: History, key: str) -> Iterator[Anomaly]:
    failed = {send.value for send in _sends(history, key, FAIL)}
    for operation, part in _parts(history):
        if isinstance(part, Poll) and part.key == key and operation.status is OK:
            for offset, value in part.read:
                if value in failed:
                    yield Anomaly("aborted read", key, f"{operation.process} read {value} at {offset}")


def _missing(history: History, key: str, read: list[tuple[int, str]], values: Values) -> Iterator[Anomaly]:
    seen = {value for _, value in read}
    highest = max((offset for offset, _ in read), default=-1)
    for send in _sends(history, key, OK):
        if send.value in seen:
            continue
        is_passed = send.offset is not None and send.offset < highest
        yield Anomaly("lost" if is_passed else "unseen", key, f"{send.value}, sent to {send.offset}")


def _leaps(history: History, key: str, known: list[int]) -> Iterator[Anomaly]:
    """`known` are all offsets that anybody read, in order."""
    rank = {offset: number for number, offset in enumerate(known)}
    position: dict[str, int] = {}
    for operation, part in _parts(history):
        process = operation.process
        if isinstance(part, Assign):
            position.pop(process, None)
        elif isinstance(part, Poll) and part.key == key:
            for offset, _ in part.read:
                before = position.get(process, rank[offset] - 1)
                if rank[offset] <= before:
                    yield Anomaly("non-monotonic", key, f"{process} went from {known[before]} to {offset}")
                elif rank[offset] > before + 1:
                    yield Anomaly("skip", key, f"{process} went from {known[before]} to {offset}")
                position[process] = rank[offset]


def _commits_back(history: History, key: str) -> Iterator[Anomaly]:
    committed: dict[str, int] = {}
    for operation, part in _parts(history):
        if isinstance(part, Commit) and part.key == key:
            before = committed.get(operation.process, part.offset)
            if part.offset < before:
                yield Anomaly("commit back", key, f"{operation.process} from {before} to {part.offset}")
            committed[operation.process] = part.offset


def _circles(history: History) -> Iterator[Anomaly]:
    """Of transactions that were not aborted: A before B, if B read what A wrote."""
    writer: dict[tuple[str, str], int] = {}
    for number, operation in enumerate(history):
        if operation.status is not FAIL:
            writer.update(
                {(part.key, part.value): number for part in operation.parts if isinstance(part, Send)}
            )
    edges: dict[int, set[int]] = {}
    for number, operation in enumerate(history):
        for part in operation.parts:
            if isinstance(part, Poll) and operation.status is not FAIL:
                wrote = {writer.get((part.key, value), number) for _, value in part.read}
                edges.setdefault(number, set()).update(wrote - {number})
    for circle in _components(edges):
        names = ", ".join(f"{history[number].process} #{number}" for number in circle)
        yield Anomaly("circular", "", f"each read what another wrote: {names}")


def _components(edges: dict[int, set[int]]) -> Iterator[list[int]]:
    """Sets of more than one node that all reach each other: peel off whoever has no edge within the rest."""
    left = set(edges)
    while True:
        idle = {number for number in left if not edges[number] & left}
        idle |= left.difference(*(edges[number] for number in left))
        if not idle:
            break
        left -= idle
    while left:
        start = min(left)
        together = {start} | (_reachable(edges, start) & {n for n in left if start in _reachable(edges, n)})
        if len(together) > 1:
            yield sorted(together)
        left -= together


def _reachable(edges: dict[int, set[int]], start: int) -> set[int]:
    found: set[int] = set()
    waiting = [start]
    while waiting:
        for following in edges.get(waiting.pop(), set()) - found:
            found.add(following)
            waiting.append(following)
    return found


def kinds(anomalies: Iterable[Anomaly]) -> set[str]:
    return {anomaly.kind for anomaly in anomalies}
