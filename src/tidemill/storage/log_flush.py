"""Bringing a log to disk without holding up the loop: take a job, run it elsewhere, complete it.

    job = log.begin_flush()        # on the loop: what must be synced, up to which offset
    job.run()                      # in a thread: fsync, nothing else
    log.complete_flush(job)        # on the loop: the recovery point moves

Synced are the log files that grew, the indexes of segments that were sealed (the active one's are rebuilt in
recovery), the leader epochs if they changed, and the directory; a snapshot of producers that a roll left to be
written is written. An fsync that failed says that pages may be
lost although a second fsync would succeed; so there is no second one: the log goes offline.
"""

from __future__ import annotations

from tidemill.ports.files import Files, OpenFile
from tidemill.storage.producer_snapshots import write_unnamed


class FlushJob:
    """Everything up to `end_offset`, to be synced in any thread."""

    __slots__ = (
        "_directory",
        "_files",
        "_open_files",
        "_paths",
        "end_offset",
        "error",
        "is_done",
        "snapshot",
        "truncation_count",
    )

    def __init__(
        self, files: Files, directory: str, end_offset: int, truncation_count: int, open_files: list[OpenFile],
        paths: list[str], snapshot: tuple[int, bytes] | None = None,
    ) -> None:  # fmt: skip
        self._files = files
        self._directory = directory
        self._open_files = open_files
        self._paths = paths
        self.end_offset = end_offset
        self.truncation_count = truncation_count
        """How often the log had been truncated; if more by the time of completion, offsets mean other bytes."""
        self.snapshot = snapshot
        """Producers as of this offset, to be written on the way; None if there are none, or the disk refused."""
        self.is_done = False
        self.error: OSError | None = None

    def run(self) -> None:
        """Sync; an OSError is kept for `complete_flush` and raised."""
        self._write_snapshot()
        try:
            for file in self._open_files:
                file.sync()
            for path in self._paths:
                self._sync_path(path)
            self._files.sync_directory(self._directory)
        except OSError as error:
            self.error = error
            raise
        self.is_done = True

    def _write_snapshot(self) -> None:
        """Beside its name, which it gets on the loop if the log was not truncated meanwhile.

        One that cannot be written only makes a recovery slower.
        """
        if self.snapshot is None:
            return
        try:
            offset, data = self.snapshot
            write_unnamed(self._files, self._directory, offset, data)
        except OSError:
            self.snapshot = None

    def _sync_path(self, path: str) -> None:
        """A file that retention or a truncation removed meanwhile needs no sync."""
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return
        try:
            file.sync()
        finally:
            file.close()
