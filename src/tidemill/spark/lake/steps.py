"""Named steps of a commit, so that a test can end the process at each of them.

Every change of a table calls `reached(name)` between two effects on the disk. In production `hook` is None
and the call does nothing; a fault test puts a function there that kills its own process.

    steps.hook = lambda step: os.kill(os.getpid(), signal.SIGKILL) if step == "committed" else None
"""

from __future__ import annotations

from collections.abc import Callable

STEPS = (
    "batch-begun",
    "table-ready",
    "file-opened",
    "file-closed",
    "files-written",
    "manifest-written",
    "one-file-moved",
    "committed",
    "rows-done",
    "dead-letters-done",
)
"""In the order in which a batch passes them. The two of a single file are passed by tasks, in other processes; the
two of the manifest exist in plain Parquet tables only."""

hook: Callable[[str], None] | None = None


def reached(step: str) -> None:
    assert step in STEPS, step
    if hook is not None:
        hook(step)
