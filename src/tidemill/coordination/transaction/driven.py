"""A transaction shard as the runtime drives it: its markers leave once the records before them are committed.

The runtime knows records, replies and timers. Markers keep the same promise as replies (never before the commit), so
here each becomes a reply: to a token of our own, whose resolution writes the markers.

    core = DrivenShard(shard, write)
    runtime.submit(index, lambda core, token, now_ms: core.carry_out(core.shard.end(token, now_ms, ...)), respond)

`write(core, markers)` gets every `SendMarkers` whose records are committed. Where the commit failed, or is unknown,
`retry` gets it instead: it reports that nothing is settled, and the shard asks again if the transaction is prepared
after all. A report is for the core that asked: one that was loaded anew meanwhile has asked for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from tidemill.coordination.core import CoordinatorRecord, Outcome, Reply
from tidemill.coordination.runtime import PendingReply
from tidemill.coordination.transaction.shard import SendMarkers, TransactionOutcome, TransactionShard
from tidemill.model.errors import ApiError

Write = Callable[["DrivenShard", SendMarkers], None]


class DrivenShard:
    """A CoordinatorCore; requests go to `shard` and through `carry_out`."""

    def __init__(self, shard: TransactionShard, write: Write, retry: Write) -> None:
        self.shard = shard
        self._write = write
        self._retry = retry

    def replay(self, record: CoordinatorRecord, offset: int, producer_id: int) -> None:
        self.shard.replay(record, offset, producer_id)

    def on_loaded(self, now_ms: int) -> Outcome:
        return self.carry_out(self.shard.on_loaded(now_ms))

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        return self.carry_out(self.shard.on_timer(key, now_ms))

    def carry_out(self, outcome: TransactionOutcome) -> Outcome:
        outcome.replies.extend(Reply(self._token(markers), markers) for markers in outcome.markers)
        return outcome

    def _token(self, markers: SendMarkers) -> PendingReply:
        def on_committed(response: Any) -> None:
            if isinstance(response, ApiError):
                self._retry(self, markers)
            else:
                self._write(self, markers)

        return PendingReply(on_committed)
