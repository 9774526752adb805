"""The cleaner as a process of its own: a job in on standard input, a result out on standard output.

    python -m tidemill.storage.cleaner_process < job.json > result.json

Compaction is work for the processor, and in the broker's process it would hold the interpreter while
messages wait. Here it runs at the lowest priority for processor and disk. It only reads the segments of its
job and writes `.cleaned` files beside them, so it may be killed at any moment; the broker removes what it
left.

A log that cannot be cleaned is a result with `error` set. Any other failure (a bug, memory) ends with a
status other than zero and a traceback on standard error.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

from tidemill.model.errors import CorruptLog, MalformedMessage
from tidemill.ports.disk import Disk
from tidemill.ports.files import Files
from tidemill.storage.cleaner import clean, discard_cleaned
from tidemill.storage.cleaner_job import CleanerJob, CleanerResult

LOWEST_PRIORITY = 19
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
"""Number of the system call, which the C library does not wrap."""
_WHO_PROCESS = 1
_BEST_EFFORT_LOWEST = 2 << 13 | 7


def main() -> int:
    yield_to_others()
    job = CleanerJob.from_json(sys.stdin.read())
    sys.stdout.write(run(Disk(), job).to_json())
    return 0


def run(files: Files, job: CleanerJob) -> CleanerResult:
    """Clean, and turn damage and a failing disk into a result."""
    try:
        discard_cleaned(files, job.directory)
        return clean(files, job)
    except (CorruptLog, MalformedMessage) as error:
        return CleanerResult(job.first_dirty_offset, error=str(error))
    except OSError as error:
        return CleanerResult(job.first_dirty_offset, error=f"{job.directory}: {error}", is_disk_error=True)


def yield_to_others() -> None:
    """Lowest priority for the processor and, where the kernel lets us, for the disk."""
    os.nice(LOWEST_PRIORITY)
    number = _IOPRIO_SET.get(platform.machine())
    if sys.platform == "linux" and number is not None:
        ctypes.CDLL(None).syscall(number, _WHO_PROCESS, 0, _BEST_EFFORT_LOWEST)


if __name__ == "__main__":
    sys.exit(main())
