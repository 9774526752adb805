"""What an offline check may find, and how bad it is."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Severity(enum.IntEnum):
    NOTE = 1
    """Worth knowing, nothing wrong."""
    WARNING = 2
    """The broker will repair it by itself at its next start, or when it stumbles over it."""
    ERROR = 3
    """Data is damaged or missing: the partition will be quarantined, or would serve wrong answers."""


class Finding(NamedTuple):
    severity: Severity
    path: str
    text: str
    position: int | None = None
    """Where in the file."""
    offset: int | None = None

    def __str__(self) -> str:
        places = [f"position {self.position}"] if self.position is not None else []
        places += [f"offset {self.offset}"] if self.offset is not None else []
        where = f" ({', '.join(places)})" if places else ""
        return f"{self.severity.name.lower()}: {self.path}{where}: {self.text}"
