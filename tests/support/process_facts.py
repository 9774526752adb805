"""What the kernel says of a process: memory and open descriptors. Linux only."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1024 * 1024


def _status_kib(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise LookupError(key)


def resident_bytes(pid: int) -> int:
    return _status_kib(pid, "VmRSS") * 1024


def peak_resident_bytes(pid: int) -> int:
    return _status_kib(pid, "VmHWM") * 1024


def forget_peak(pid: int) -> int:
    """Let the peak begin anew at what is resident now, which is the answer."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_resident_bytes(pid)


def descriptor_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def socket_count(pid: int) -> int:
    """Open sockets; a file that was opened late and kept does not count."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            count += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
        except OSError:
            continue  # closed meanwhile
    return count
