"""The checker before it judges: twelve planted anomalies are found, a hundred clean histories give no alarm."""

from __future__ import annotations

import random

import pytest
from history import FAIL, INFO, OK, Assign, Commit, History, Operation, Part, Poll, Send, Status, check, kinds

READ_ALL = Operation("reader", OK, [Assign(), Poll("p", [(0, "a"), (1, "b"), (2, "c")])])
SENT_ALL = [Operation("w", OK, [Send("p", value, offset)]) for offset, value in enumerate(("a", "b", "c"))]


def reader(*reads: list[tuple[int, str]], status: Status = OK) -> History:
    """One consumer, one assignment, several polls."""
    return [Operation("other", status, [Assign()])] + [
        Operation("other", status, [Poll("p", read)]) for read in reads
    ]


PLANTED: list[tuple[str, str, History]] = [
    (
        "two readers see different values",
        "inconsistent",
        [*SENT_ALL, READ_ALL, *reader([(0, "a"), (1, "x")])],
    ),
    (
        "a read differs from what was acknowledged",
        "inconsistent",
        [Operation("w", OK, [Send("p", "z", 1)]), READ_ALL],
    ),
    (
        "a retry was written twice",
        "duplicate",
        [*SENT_ALL, Operation("reader", OK, [Assign(), Poll("p", [(0, "a"), (1, "b"), (2, "c"), (3, "a")])])],
    ),
    (
        "a message is not where it was acknowledged",
        "duplicate",
        [Operation("w", OK, [Send("p", "c", 7)]), READ_ALL],
    ),
    ("a failed send is read", "aborted read", [Operation("w", FAIL, [Send("p", "b")]), READ_ALL]),
    (
        "a message of an aborted transaction is read",
        "aborted read",
        [Operation("w", FAIL, [Send("p", "a"), Send("p", "b")]), READ_ALL],
    ),
    (
        "an acknowledged message is missing in the middle",
        "lost",
        [*SENT_ALL, Operation("reader", OK, [Assign(), Poll("p", [(0, "a"), (2, "c")])])],
    ),
    ("an acknowledged message is missing at the end", "unseen", [*SENT_ALL, *reader([(0, "a"), (1, "b")])]),
    ("a consumer leaps within a poll", "skip", [*SENT_ALL, READ_ALL, *reader([(0, "a"), (2, "c")])]),
    ("a consumer leaps between polls", "skip", [*SENT_ALL, READ_ALL, *reader([(0, "a")], [(2, "c")])]),
    (
        "a consumer goes back without being told to",
        "non-monotonic",
        [*SENT_ALL, READ_ALL, *reader([(0, "a"), (1, "b")], [(1, "b")])],
    ),
    (
        "two transactions read each other's messages",
        "circular",
        [
            Operation("t1", OK, [Send("p", "a", 0), Poll("p", [(1, "b")])]),
            Operation("t2", OK, [Send("p", "b", 1), Poll("p", [(0, "a")])]),
            Operation("w", OK, [Send("p", "c", 2)]),
            READ_ALL,
        ],
    ),
]


def test_there_are_twelve() -> None:
    assert len(PLANTED) == 12


@pytest.mark.parametrize(("expected", "history"), [pytest.param(k, h, id=name) for name, k, h in PLANTED])
def test_a_planted_anomaly_is_found(expected: str, history: History) -> None:
    assert expected in kinds(check(history)), check(history)


def test_a_committed_offset_that_goes_back_is_found() -> None:
    commits = [("g", 1), ("other", 3), ("g", 2), ("g", 2), ("other", 3), ("g", 1)]
    history = [Operation(group, OK, [Commit("p", offset)]) for group, offset in commits]
    assert [(found.kind, found.what) for found in check(history)] == [("commit back", "g from 2 to 1")]
    assert not check(history[:-1]), "groups go on by themselves"


class CleanCluster:
    """A log per key that does everything right, and clients that have all the bad luck there is."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.logs: dict[str, list[str | None]] = {"p": [], "q": []}
        """None where a marker or an aborted message is."""
        self.history: History = []
        self.positions: dict[str, dict[str, int]] = {}
        self.committed: dict[str, int] = {}
        self._next = 0

    def write(self) -> None:
        """A send or a transaction: committed, aborted, or with an answer that got lost."""
        status = self.chance.choice([OK, OK, OK, FAIL, INFO])
        is_there = status is OK or (status is INFO and self.chance.random() < 0.5)
        parts: list[Part] = []
        for _ in range(self.chance.choice([1, 1, 3])):
            key, self._next = self.chance.choice(sorted(self.logs)), self._next + 1
            log, value = self.logs[key], f"v{self._next}"
            parts.append(Send(key, value, len(log) if status is OK and self.chance.random() < 0.8 else None))
            log.append(value if is_there else None)
        if len(parts) > 1:
            self.logs["p"].append(None)
        self.history.append(Operation("writer", status, parts))

    def poll(self, process: str, key: str, count: int) -> None:
        position = self.positions.setdefault(process, {}).get(key, 0)
        log = self.logs[key][position : position + count]
        read = [(position + n, value) for n, value in enumerate(log) if value is not None]
        self.positions[process][key] = position + len(log)
        self.history.append(Operation(process, self.chance.choice([OK, OK, INFO]), [Poll(key, read)]))

    def rebalance(self, process: str) -> None:
        """Back to some earlier commit, or forward to where another one stopped."""
        self.positions[process] = {key: self.chance.randint(0, len(log)) for key, log in self.logs.items()}
        self.history.append(Operation(process, OK, [Assign()]))

    def commit(self, key: str) -> None:
        """Somewhere between the last commit and the end."""
        self.committed[key] = self.chance.randint(self.committed.get(key, 0), len(self.logs[key]))
        self.history.append(Operation("group", OK, [Commit(key, self.committed[key])]))

    def run(self) -> History:
        for _ in range(150):
            dice, process = self.chance.random(), self.chance.choice(["one", "two"])
            if dice < 0.5:
                self.write()
            elif dice < 0.55:
                self.commit(self.chance.choice(["p", "q"]))
            elif dice < 0.9:
                self.poll(process, self.chance.choice(["p", "q"]), self.chance.randint(1, 5))
            else:
                self.rebalance(process)
        for key in self.logs:
            self.poll("last", key, len(self.logs[key]))
        return self.history


def test_a_hundred_clean_histories_give_no_alarm() -> None:
    for seed in range(100):
        found = check(CleanCluster(seed).run())
        assert not found, (seed, found)
