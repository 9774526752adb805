"""The real disk: `Files` on the system calls of Linux.

Descriptors close when nobody holds their object any more, so a `sendfile` under way keeps a deleted or
evicted file readable simply by holding it. A map holds one descriptor (Python duplicates the one it maps).

    disk = Disk()
    file = disk.open("/tmp/a", create=True)
    file.write((b"12", b"34"), 0)      # one pwritev
    file.read(1, 2)                    # b"23"

Limits: POSIX only; one process writes a file at a time.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Sequence

from typing_extensions import Buffer

from tidemill.ports.files import MappedFile, OpenFile


class DiskFile:
    """An open descriptor with positioned reads and writes."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: str, create: bool) -> None:
        self._descriptor = -1
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._descriptor = os.open(path, flags, 0o644)

    def fileno(self) -> int:
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        written = os.pwritev(self._descriptor, buffers, position)
        total = 0
        for buffer in buffers:
            total += len(buffer)  # type: ignore[arg-type]
        if written == total:
            return total
        return self._write_rest(buffers, position, written)

    def _write_rest(self, buffers: Sequence[Buffer], position: int, written: int) -> int:
        """A signal or a nearly full disk cut the write short: go on, so that the error (if any) shows."""
        whole = b"".join(buffers)
        while written < len(whole):
            step = os.pwrite(self._descriptor, memoryview(whole)[written:], position + written)
            if step == 0:
                raise OSError(5, "the disk took no bytes")
            written += step
        return written

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        return self._read_rest(data, position, length)

    def _read_rest(self, data: bytes, position: int, length: int) -> bytes:
        while len(data) < length:
            more = os.pread(self._descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class DiskMap:
    """A shared, writable map of a file's first bytes."""

    __slots__ = ("_map", "_path", "_view")

    def __init__(self, path: str, size: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._path = path
        self._view = memoryview(self._map)

    @property
    def buffer(self) -> memoryview:
        return self._view

    def sync(self) -> None:
        self._map.flush()

    def close(self, final_size: int | None = None) -> None:
        self._view.release()
        self._map.close()
        if final_size is not None:
            os.truncate(self._path, final_size)


class Disk:
    """`Files` on the machine's own file systems."""

    def open(self, path: str, *, create: bool = False) -> OpenFile:
        return DiskFile(path, create)

    def map(self, path: str, size: int) -> MappedFile:
        return DiskMap(path, size)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_filesystem(self, path: str) -> None:
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if library.syncfs(descriptor) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(descriptor)

    def read_all(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        temporary = path + ".tmp"
        with open(temporary, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            self.sync_directory(os.path.dirname(path) or ".")

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, when_ms: int) -> None:
        os.utime(path, ns=(when_ms * 1_000_000, when_ms * 1_000_000))

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize
