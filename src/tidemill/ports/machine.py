"""What the machine allows: the limits of Linux that a broker with many partitions runs into first.

Each partition keeps a few files open and maps their indexes, so 10,000 partitions need some 60,000 descriptors
and 40,000 maps, while Linux begins with 1,024 and 65,530. A broker whose pages are swapped out answers in seconds
instead of milliseconds. `machine_checks()` compares, and for what falls short names the command that sets it:

    for check in machine_checks():
        if not check.is_good:
            print(f"{check.name} is {check.found}, should be {check.wanted}: {check.remedy}")

Used by `tidemill doctor` and when a broker starts. Limits: Linux; where `/proc` lacks a value, its check is left
out rather than guessed.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

WANTED_MAPS = 262_144
WANTED_DESCRIPTORS = 100_000
WANTED_SWAPPINESS = 10

_KERNEL_SETTINGS = Path("/proc/sys/vm")


class MachineCheck(NamedTuple):
    name: str
    found: int
    wanted: int
    is_good: bool
    reason: str
    remedy: str


def machine_checks(kernel_settings: Path = _KERNEL_SETTINGS) -> list[MachineCheck]:
    """All checks that can be made here."""
    checks = [_check_maps(kernel_settings), _check_descriptors(), _check_swappiness(kernel_settings)]
    return [check for check in checks if check is not None]


def _check_maps(kernel_settings: Path) -> MachineCheck | None:
    found = _read_number(kernel_settings / "max_map_count")
    if found is None:
        return None
    return MachineCheck(
        "vm.max_map_count", found, WANTED_MAPS, found >= WANTED_MAPS,
        "every open index of a partition is a memory map",
        f"sudo sysctl -w vm.max_map_count={WANTED_MAPS}",
    )  # fmt: skip


def _check_descriptors() -> MachineCheck:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    hard_suffices = hard == resource.RLIM_INFINITY or hard >= WANTED_DESCRIPTORS
    raise_limit = f"ulimit -n {WANTED_DESCRIPTORS}"
    remedy = raise_limit if hard_suffices else f"sudo prlimit --pid $$ --nofile={WANTED_DESCRIPTORS}"
    return MachineCheck(
        "open files (nofile)", found, WANTED_DESCRIPTORS, found >= WANTED_DESCRIPTORS,
        "every segment and every connection is a descriptor", remedy,
    )  # fmt: skip


def _check_swappiness(kernel_settings: Path) -> MachineCheck | None:
    found = _read_number(kernel_settings / "swappiness")
    if found is None:
        return None
    return MachineCheck(
        "vm.swappiness", found, WANTED_SWAPPINESS, found <= WANTED_SWAPPINESS,
        "a broker that is swapped out stalls its clients",
        f"sudo sysctl -w vm.swappiness={WANTED_SWAPPINESS}",
    )  # fmt: skip


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
