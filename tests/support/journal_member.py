"""A member of a consumer group that writes down what it reads before it commits it: a program that `workers` starts.

    python journal_member.py JOURNAL LIFE CLIENT BOOTSTRAP GROUP TOPIC

SIGTERM: leave the group and end. SIGUSR1: take longer over the next messages than `max.poll.interval.ms` allows, and
then try to commit them all the same. A client that gives up ends the program, which is then started again. The journal
has `["started", []]` once it hears signals, `["assigned", []]`, `["read", [[partition, offset, value], ...]]` and
`["stalled", []]`.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from group_members import MEMBERS
from workers import Journal, Stopping

SESSION_TIMEOUT_MS = 2_000
MAX_POLL_INTERVAL_MS = 2_500
STALL_SECONDS = 4.0


def main(path: str, life: str, client: str, bootstrap: str, group: str, topic: str) -> int:
    journal, stopping, is_to_stall = Journal(path), Stopping(), threading.Event()

    def on_stall(number: int, frame: FrameType | None) -> None:
        is_to_stall.set()

    signal.signal(signal.SIGUSR1, on_stall)

    class JournalMember(MEMBERS[client]):  # type: ignore[misc]
        def be_assigned(self) -> None:
            super().be_assigned()
            journal.write("assigned", [])

        def receive(self, messages: list[tuple[int, int, bytes]]) -> None:
            if not messages:
                return
            journal.write("read", [(index, offset, value.decode()) for index, offset, value in messages])
            if is_to_stall.is_set():
                is_to_stall.clear()
                journal.write("stalled", [])
                time.sleep(STALL_SECONDS)

    member: Any = JournalMember(
        bootstrap,
        group,
        topic,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
    )
    journal.write("started", [])
    member.start()
    while not stopping.is_asked and member.error is None:
        time.sleep(0.05)
    member.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
