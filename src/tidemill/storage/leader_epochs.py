"""Which leader wrote from which offset on: the leader epoch checkpoint.

    leader-epoch-checkpoint:   0            (version)
                               2            (entries)
                               0 0          (epoch, its first offset)
                               3 120

With this file, epoch 0 ends at 120 and epoch 3 at the end of the log. A follower that asks "where does epoch
1 end?" hears (0, 120): the largest epoch not above the asked one, and where it ends. By that the follower
truncates what the new leader never had; high watermarks play no part in it.

The file is replaced whole at each change, without waiting for the disk: the flush of the log waits (see
`log_flush`), so entries about flushed data are always on disk; entries about younger data come back from the
batches themselves, which carry their epoch. A file that cannot be parsed is rebuilt from the batches too.

Limits: entries live in memory, a few dozen at most in practice.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from tidemill.model.errors import TidemillError
from tidemill.ports.files import Files

FILE_NAME = "leader-epoch-checkpoint"
NO_EPOCH = -1
NO_OFFSET = -1
_VERSION = "0"


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


class CorruptEpochs(TidemillError):
    """A checkpoint file that is none; the batches of the log can rebuild it."""


class LeaderEpochs:
    """The epochs of one log; epochs and start offsets both increase strictly."""

    __slots__ = ("_entries", "_files", "_stored", "is_deferred", "is_unsynced", "latest_epoch", "path")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self.path = f"{directory}/{FILE_NAME}"
        self._entries: list[EpochEntry] = []
        self.latest_epoch = NO_EPOCH
        self.is_unsynced = False
        """Whether the file changed since it was last synced."""
        self.is_deferred = False
        """While a log is opened: changes stay in memory until `settle`."""
        self._stored: list[EpochEntry] = []

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    def load(self) -> None:
        """Read the file if there is one; raises CorruptEpochs."""
        if self._files.exists(self.path):
            self._stored = parse_checkpoint(self._files.read_all(self.path))
            self._adopt(self._stored)

    # -- changes --------------------------------------------------------------------------------------

    def assign(self, epoch: int, start_offset: int) -> None:
        """This epoch writes from this offset on; later claims of smaller epochs on that range give way."""
        assert epoch >= 0 and start_offset >= 0
        entries = self._entries
        if entries and epoch == entries[-1].epoch and start_offset >= entries[-1].start_offset:
            return
        kept = [entry for entry in entries if entry.epoch < epoch and entry.start_offset < start_offset]
        self.replace([*kept, EpochEntry(epoch, start_offset)])

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends here: forget epochs that begin at or after it."""
        if self._entries and self._entries[-1].start_offset >= end_offset:
            self.replace([entry for entry in self._entries if entry.start_offset < end_offset])

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now begins here: the epoch that spans it begins here too, those before are forgotten."""
        covering = bisect_right(self._entries, start_offset, key=attrgetter("start_offset")) - 1
        if covering > 0 or (covering == 0 and self._entries[0].start_offset < start_offset):
            kept = self._entries[covering + 1 :]
            self.replace([EpochEntry(self._entries[covering].epoch, start_offset), *kept])

    def clear(self) -> None:
        self.replace([])

    def replace(self, entries: list[EpochEntry]) -> None:
        """File first: if the disk refuses, nothing has changed."""
        if not self.is_deferred:
            self._write(entries)
        self._adopt(entries)

    def settle(self) -> None:
        """End of the deferral: write what differs from the file."""
        self.is_deferred = False
        if self._entries != self._stored:
            self._write(self._entries)

    def _write(self, entries: list[EpochEntry]) -> None:
        self._files.write_atomic(self.path, render_checkpoint(entries), sync=False)
        self.is_unsynced = True
        self._stored = entries

    def _adopt(self, entries: list[EpochEntry]) -> None:
        assert _is_ascending(entries)
        self._entries = entries
        self.latest_epoch = entries[-1].epoch if entries else NO_EPOCH

    # -- questions ------------------------------------------------------------------------------------

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch not above this one, where it ends); (-1, -1) if that cannot be said."""
        if epoch == NO_EPOCH:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        above = bisect_right(self._entries, epoch, key=attrgetter("epoch"))
        if above == len(self._entries):
            return NO_EPOCH, NO_OFFSET
        end_offset = self._entries[above].start_offset
        return (self._entries[above - 1].epoch if above else epoch), end_offset

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that wrote this offset, or -1."""
        covering = bisect_right(self._entries, offset, key=attrgetter("start_offset")) - 1
        return self._entries[covering].epoch if covering >= 0 else NO_EPOCH


def render_checkpoint(entries: list[EpochEntry]) -> bytes:
    lines = [_VERSION, str(len(entries)), *(f"{entry.epoch} {entry.start_offset}" for entry in entries)]
    return ("\n".join(lines) + "\n").encode()


def parse_checkpoint(data: bytes) -> list[EpochEntry]:
    try:
        lines = data.decode("ascii").split("\n")
        version, count, rows = lines[0], int(lines[1]), lines[2:-1]
        entries = [EpochEntry(*map(int, row.split(" "))) for row in rows]
    except (ValueError, IndexError, TypeError) as error:
        raise CorruptEpochs(f"no leader epoch checkpoint: {error}") from error
    if version != _VERSION or count != len(entries) or lines[-1] or not _is_ascending(entries):
        raise CorruptEpochs("the leader epoch checkpoint does not add up")
    return entries


def _is_ascending(entries: list[EpochEntry]) -> bool:
    starts_well = not entries or min(entries[0]) >= 0
    return starts_well and all(
        a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(entries)
    )
