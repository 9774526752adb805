"""One process per data directory: a lock on the file `.lock`, the same that Apache Kafka takes."""

from __future__ import annotations

import fcntl
import os
from typing import ClassVar

from tidemill.server.options import StartError


class UnusableDirectory(StartError):
    """The directory cannot be written to; a broker with others goes on without it."""

    def __init__(self, directory: str, error: OSError) -> None:
        super().__init__(
            f"cannot write to the data directory {directory}: {error.strerror}; "
            "make it writable or choose another with --data-dir"
        )
        self.error = error


class DataLock:
    _held: ClassVar[set[str]] = set()
    """Locks of the kernel are per process; two brokers in one process must not share a directory either."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def acquire(self, directory: str) -> None:
        """Raises UnusableDirectory, and StartError if another broker has it."""
        path = os.path.realpath(directory)
        try:
            os.makedirs(path, exist_ok=True)
            descriptor = os.open(f"{path}/.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UnusableDirectory(directory, error) from error
        try:
            if path in self._held:
                raise BlockingIOError
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise StartError(
                f"the data directory {directory} is used by another broker; stop it or choose another directory"
            ) from error
        self._held.add(path)
        self._descriptors[path] = descriptor

    def release(self) -> None:
        for path, descriptor in self._descriptors.items():
            os.close(descriptor)
            self._held.discard(path)
        self._descriptors.clear()
