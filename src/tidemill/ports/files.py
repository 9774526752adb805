"""The disk as a port. Storage touches files only through these protocols, so that a fake can lose what was
not synced, tear a write, fail an fsync or run out of space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from typing_extensions import Buffer


class OpenFile(Protocol):
    """A file opened for reading and appending at chosen positions."""

    def fileno(self) -> int:
        """The descriptor that `sendfile` reads from (fakes have none and raise)."""
        ...

    def size(self) -> int: ...

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers at this position, in one vectored call if the kernel takes it whole.

        Returns the bytes written, which is all of them. After an OSError some of them may be in the file:
        the caller truncates.
        """
        ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def sync(self) -> None: ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class MappedFile(Protocol):
    """A writable memory map over a file (indexes)."""

    @property
    def buffer(self) -> memoryview: ...

    def sync(self) -> None: ...

    def close(self, final_size: int | None = None) -> None:
        """Unmap; with `final_size`, also cut the file to that size."""
        ...


class Files(Protocol):
    """A tree of files; paths are plain strings."""

    def open(self, path: str, *, create: bool = False) -> OpenFile: ...

    def map(self, path: str, size: int) -> MappedFile:
        """Map the first `size` bytes, growing the (sparse) file to that size."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def list(self, directory: str) -> list[str]: ...

    def make_directory(self, path: str) -> None:
        """With parents; no error if it is there."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces what is there."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def sync_filesystem(self, path: str) -> None:
        """Everything on the file system of this path, in one call: for thousands of files at once."""
        ...

    def read_all(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a temporary file, sync it, rename it over `path`, sync the directory.

        Without `sync` a reader still sees the old bytes or the new ones, but a power loss may leave either,
        or neither whole: only for files that can be checked and rebuilt.
        """
        ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, when_ms: int) -> None: ...

    def free_bytes(self, path: str) -> int:
        """What may still be written to the disk of this path."""
        ...

    def total_bytes(self, path: str) -> int:
        """The size of the disk of this path."""
        ...
