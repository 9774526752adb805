"""A disk in memory that breaks on purpose: for tests of everything that writes files.

It behaves like `Disk`, with one addition: it knows what a power loss would leave.

    files = MemoryFiles()
    file = files.open("/a", create=True); files.sync_directory("/")
    file.write((b"one",), 0); file.sync(); file.write((b"two",), 3)
    files.lose_power()                     # a file system as found after the reboot: "/a" holds b"one"

What survives. Bytes survive once the file was synced; a name (made, renamed, removed) once its directory was.
`lose_power` drops all the rest; `lose_power(randomness)` lets, for each file, a random beginning of the unsynced
writes through, the last of them perhaps torn, and for maps random pages: any of that may happen on a real disk.
`kill` is `kill -9`: the maps and open files of the process are gone, but no byte is.

Faults: `fail("sync", errno.EIO)` makes the next call fail (or the next `times`, or only on paths that contain a
text); a failing write leaves the first half of its bytes behind, as a real one may. `capacity_bytes` is the size
of the disk: beyond it writes fail with ENOSPC until something is removed. `flip_bit` and `tear` damage files.

Limits: a map of a file that is cut or grown by other means goes stale; directories are never lost (only the
names in them); one process, no permissions, no links.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Iterator, Sequence

from typing_extensions import Buffer

from tidemill.ports.files import MappedFile, OpenFile
from tidemill.ports.randomness import Randomness

PAGE_BYTES = 4096
WHOLE = 1 << 62
_Names = list[str]


class _Node:
    """The bytes of a file: as programs see them, and as the disk has them."""

    __slots__ = ("data", "durable", "is_mapped", "modified_ms", "unsynced")

    def __init__(self, now_ms: int) -> None:
        self.data = bytearray()
        self.durable = b""
        self.unsynced: list[Callable[[bytearray, int], int]] = []
        """Writes and cuts since the last sync: apply up to so many bytes to what is there, say how many."""
        self.is_mapped = False
        self.modified_ms = now_ms

    def apply(self, operation: Callable[[bytearray, int], int]) -> None:
        try:
            operation(self.data, WHOLE)
        except BufferError:
            self.data = bytearray(self.data)
            operation(self.data, WHOLE)
        self.unsynced.append(operation)

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.unsynced.clear()

    def after_power_loss(self, randomness: Randomness | None) -> bytearray:
        if randomness is None:
            return bytearray(self.durable)
        if self.is_mapped:
            return self._mixed_pages(randomness)
        survivors = bytearray(self.durable)
        for operation in self.unsynced:
            if randomness.below(3) == 0:
                operation(survivors, randomness.below(200))
                break
            operation(survivors, WHOLE)
        return survivors

    def _mixed_pages(self, randomness: Randomness) -> bytearray:
        old = self.durable.ljust(len(self.data), b"\0")
        mixed = bytearray()
        for start in range(0, len(self.data), PAGE_BYTES):
            source = old if randomness.below(2) else self.data
            mixed += source[start : start + PAGE_BYTES]
        return mixed


def _write_operation(data: bytes, position: int) -> Callable[[bytearray, int], int]:
    def apply(target: bytearray, limit: int) -> int:
        kept = data[:limit]
        if len(target) < position:
            target.extend(bytes(position - len(target)))
        target[position : position + len(kept)] = kept
        return len(kept)

    return apply


def _truncate_operation(size: int) -> Callable[[bytearray, int], int]:
    def apply(target: bytearray, limit: int) -> int:
        if len(target) < size:
            target.extend(bytes(size - len(target)))
        del target[size:]
        return 0

    return apply


@dataclasses.dataclass
class _Fault:
    operation: str
    error: int
    path_part: str
    times: int


class MemoryFile:
    """An open file; stays usable when its name is gone, as on a real disk."""

    __slots__ = ("_files", "_is_closed", "_node", "path")

    def __init__(self, files: MemoryFiles, path: str, node: _Node) -> None:
        self._files = files
        self._node = node
        self._is_closed = False
        self.path = path

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a file in memory has no descriptor")

    def size(self) -> int:
        return len(self._open_node().data)

    def _open_node(self) -> _Node:
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        return self._node

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        node = self._open_node()
        data = b"".join(buffers)
        error = self._files.injected_error("write", self.path)
        if error is None and self._files.lacks_room(max(0, position + len(data) - len(node.data))):
            error = OSError(errno.ENOSPC, "no space left", self.path)
        if error is not None:
            data = (
                data[: len(data) // 2] if error.errno != errno.ENOSPC else data[: self._files.free_bytes("/")]
            )
        node.apply(_write_operation(data, position))
        node.modified_ms = self._files.now_ms
        if error is not None:
            raise error
        return len(data)

    def read(self, position: int, length: int) -> bytes:
        if position < 0 or length < 0:
            raise OSError(errno.EINVAL, "a negative position or length", self.path)
        self._files.maybe_fail("read", self.path)
        return bytes(self._open_node().data[position : position + length])

    def sync(self) -> None:
        node = self._open_node()
        self._files.maybe_fail("sync", self.path)
        self._files.sync_count += 1
        node.sync()

    def truncate(self, size: int) -> None:
        node = self._open_node()
        self._files.maybe_fail("truncate", self.path)
        node.apply(_truncate_operation(size))
        node.modified_ms = self._files.now_ms

    def close(self) -> None:
        self._is_closed = True


class MemoryMap:
    """A map; stores go straight to the file's bytes, as through the page cache."""

    __slots__ = ("_files", "_node", "_path", "_view")

    def __init__(self, files: MemoryFiles, path: str, node: _Node, size: int) -> None:
        self._files = files
        self._path = path
        self._node = node
        if len(node.data) < size:
            node.apply(_truncate_operation(size))
        node.is_mapped = True
        self._view = memoryview(node.data)[:size]

    @property
    def buffer(self) -> memoryview:
        return self._view

    def sync(self) -> None:
        self._files.maybe_fail("sync", self._path)
        self._node.sync()

    def close(self, final_size: int | None = None) -> None:
        self._view.release()
        if final_size is not None:
            self._node.apply(_truncate_operation(final_size))


class MemoryFiles:
    """`Files` in memory, with faults."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.now_ms = 0
        """Modification times are taken from here."""
        self.sync_count = 0
        self._nodes: dict[str, _Node] = {}
        self._durable_names: dict[str, _Node] = {}
        self._directories: set[str] = {"/"}
        self._faults: list[_Fault] = []

    # -- faults ---------------------------------------------------------------------------------------

    def fail(self, operation: str, error: int = errno.EIO, *, path: str = "", times: int = 1) -> None:
        """Make the next calls of `operation` on paths that contain `path` raise this errno.

        Operations: open, write, read, sync, truncate, map, rename, remove, write_atomic.
        """
        self._faults.append(_Fault(operation, error, path, times))

    def heal(self) -> None:
        """No more injected faults, and a disk without end."""
        self._faults.clear()
        self.capacity_bytes = None

    def injected_error(self, operation: str, path: str) -> OSError | None:
        for fault in self._faults:
            if fault.operation == operation and fault.path_part in path and fault.times > 0:
                fault.times -= 1
                return OSError(fault.error, os.strerror(fault.error), path)
        return None

    def maybe_fail(self, operation: str, path: str) -> None:
        error = self.injected_error(operation, path)
        if error is not None:
            raise error

    def lacks_room(self, more_bytes: int) -> bool:
        return self.capacity_bytes is not None and self.used_bytes() + more_bytes > self.capacity_bytes

    def used_bytes(self) -> int:
        """Maps are sparse: a mapped file counts up to its last byte that is not zero."""
        return sum(
            len(node.data.rstrip(b"\0")) if node.is_mapped else len(node.data)
            for node in self._nodes.values()
        )

    def kill(self) -> None:
        """The process ends at once; objects opened before must not be used any more."""
        for path, node in self._nodes.items():
            node.data = bytearray(node.data)
            self._nodes[path].is_mapped = False

    def lose_power(self, randomness: Randomness | None = None) -> None:
        """Become what is found after a power loss; objects opened before must not be used any more."""
        self._nodes = dict(self._durable_names)
        for path in sorted(self._nodes):
            node, survivor = self._nodes[path], _Node(self.now_ms)
            survivor.data = node.after_power_loss(randomness)
            survivor.sync()
            self._nodes[path] = survivor
        self._durable_names = dict(self._nodes)

    def tear(self, path: str, size: int) -> None:
        """Cut a file, as a torn write or a bad tool would."""
        self._replace(path, bytes(self._node(path).data[:size]))

    def flip_bit(self, path: str, bit: int) -> None:
        data = bytearray(self._node(path).data)
        data[bit // 8] ^= 1 << (bit % 8)
        self._replace(path, bytes(data))

    def _replace(self, path: str, data: bytes) -> None:
        node = self._nodes[path] = self._durable_names[path] = _Node(self.now_ms)
        node.data = bytearray(data)
        node.sync()

    def paths(self) -> _Names:
        """All files there are."""
        return sorted(self._nodes)

    # -- Files ----------------------------------------------------------------------------------------

    def _node(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def _make(self, path: str) -> _Node:
        if path not in self._nodes:
            if _parent(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            self._nodes[path] = _Node(self.now_ms)
        return self._nodes[path]

    def open(self, path: str, *, create: bool = False) -> OpenFile:
        self.maybe_fail("open", path)
        return MemoryFile(self, path, self._make(path) if create else self._node(path))

    def map(self, path: str, size: int) -> MappedFile:
        self.maybe_fail("map", path)
        return MemoryMap(self, path, self._make(path), size)

    def exists(self, path: str) -> bool:
        return path in self._nodes or path in self._directories

    def size(self, path: str) -> int:
        return len(self._node(path).data)

    def list(self, directory: str) -> _Names:
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        children = {*self._nodes, *(self._directories - {"/"})}
        return sorted(path.rpartition("/")[2] for path in children if _parent(path) == directory)

    def make_directory(self, path: str) -> None:
        while path not in self._directories:
            self._directories.add(path)
            path = _parent(path)

    def rename(self, old: str, new: str) -> None:
        self.maybe_fail("rename", old)
        if old in self._directories:
            self._rename_directory(old, new)
        else:
            self._nodes[new] = self._node(old)
            del self._nodes[old]

    def _rename_directory(self, old: str, new: str) -> None:
        def renamed(path: str) -> str:
            return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path

        self._directories = {renamed(path) for path in self._directories}
        self._nodes = {renamed(path): node for path, node in self._nodes.items()}
        self._durable_names = {renamed(path): node for path, node in self._durable_names.items()}

    def remove(self, path: str) -> None:
        self.maybe_fail("remove", path)
        self._node(path)
        del self._nodes[path]

    def remove_tree(self, path: str) -> None:
        for inside in list(self._inside(path)):
            self._nodes.pop(inside, None)
            self._durable_names.pop(inside, None)
            self._directories.discard(inside)
        self._directories.discard(path)

    def _inside(self, directory: str) -> Iterator[str]:
        for path in (*self._nodes, *self._durable_names, *self._directories):
            if path.startswith(f"{directory}/"):
                yield path

    def sync_directory(self, path: str) -> None:
        self.maybe_fail("sync", path)
        self.sync_count += 1
        durable = {name: node for name, node in self._durable_names.items() if _parent(name) != path}
        durable.update((name, node) for name, node in self._nodes.items() if _parent(name) == path)
        self._durable_names = durable

    def sync_filesystem(self, path: str) -> None:
        self.maybe_fail("sync", path)
        self.sync_count += 1
        for node in self._nodes.values():
            node.sync()
        self._durable_names = dict(self._nodes)

    def read_all(self, path: str) -> bytes:
        self.maybe_fail("read", path)
        return bytes(self._node(path).data)

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self.maybe_fail("write_atomic", path)
        file = self.open(f"{path}.tmp", create=True)
        file.truncate(0)
        file.write((data,), 0)
        if sync:
            file.sync()
        self.rename(f"{path}.tmp", path)
        if sync:
            self.sync_directory(_parent(path))

    def modified_ms(self, path: str) -> int:
        return self._node(path).modified_ms

    def set_modified_ms(self, path: str, when_ms: int) -> None:
        self._node(path).modified_ms = when_ms

    def free_bytes(self, path: str) -> int:
        if self.capacity_bytes is None:
            return 1 << 40
        return max(0, self.capacity_bytes - self.used_bytes())

    def total_bytes(self, path: str) -> int:
        return 1 << 40 if self.capacity_bytes is None else self.capacity_bytes


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
