"""Putting a cleaned segment in the place of the old ones, so that a crash at any moment loses nothing.

The cleaner leaves `B.index.cleaned, B.timeindex.cleaned, B.txnindex.cleaned, B.log.cleaned`, synced, to
stand for the old segments B, C and D. From there on everything is renames and removals, and the log file
always goes last:

    1  B.index.cleaned -> B.index.swap, ..., B.log.cleaned -> B.log.swap     from here on the swap counts
    2  B.*, C.*, D.* -> B.*.deleted, C.*.deleted, D.*.deleted
    3  B.index.swap -> B.index, ..., B.log.swap -> B.log                      done

So after a crash one look at the names tells what to do (`recover_swaps`, before the log is loaded):

    B.log.swap is there       the swap counts: steps 2 and 3 again, which do no harm when half done
    other .swap files alone   the swap had not begun to count: remove them
    .cleaned files            an unfinished pass: remove them
    .deleted files            were on their way out: remove them

Which segments the swap replaces is found in the cleaned log itself: those whose base offsets lie below
its end. One whose every record was dropped may be missed in this way; it then holds old values only, and
the next pass, which begins at the same dirty offset because that had not been written down yet, drops
them again.

Limits: the caller syncs the directory after step 1; from there on the file system keeps the order of
renames within a directory, as ext4, XFS and Btrfs do. Several swaps of a log happen in ascending order of
their base offsets.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.model.errors import CorruptLog
from tidemill.ports.files import Files
from tidemill.storage.batch_scan import DamagedBatch, scan_headers
from tidemill.storage.cleaner import CLEANED_SUFFIX, SEGMENT_KINDS, segment_path

SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"
TEMPORARY_SUFFIXES = (CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)
_LOG_LAST = tuple(reversed(SEGMENT_KINDS))
assert _LOG_LAST[-1] == "log"


def commit_swap(files: Files, directory: str, base_offset: int) -> None:
    """Step 1: from here on, a crash ends with the cleaned segment in place."""
    for kind in _LOG_LAST:
        _rename_if_there(
            files,
            segment_path(directory, base_offset, kind, CLEANED_SUFFIX),
            segment_path(directory, base_offset, kind, SWAP_SUFFIX),
        )


def retire_segments(files: Files, directory: str, base_offsets: Sequence[int]) -> list[str]:
    """Step 2: old segments get out of the way; the paths to remove once nobody reads them any more."""
    retired = []
    for base_offset in base_offsets:
        for kind in SEGMENT_KINDS:
            path = segment_path(directory, base_offset, kind)
            if files.exists(path):
                files.rename(path, path + DELETED_SUFFIX)
                retired.append(path + DELETED_SUFFIX)
    return retired


def finish_swap(files: Files, directory: str, base_offset: int) -> None:
    """Step 3: the cleaned files take their names."""
    for kind in _LOG_LAST:
        path = segment_path(directory, base_offset, kind)
        _rename_if_there(files, path + SWAP_SUFFIX, path)


def _rename_if_there(files: Files, old: str, new: str) -> None:
    if files.exists(old):
        files.rename(old, new)


# -- after a crash -------------------------------------------------------------------------------------


def recover_swaps(files: Files, directory: str, names: Sequence[str]) -> bool:
    """Finish or undo what a crash interrupted; whether anything was done (then list the directory again)."""
    leftovers = [name for name in names if name.endswith(TEMPORARY_SUFFIXES) and name[:20].isdecimal()]
    if not leftovers:
        return False
    cleaned = [name for name in leftovers if name.endswith(CLEANED_SUFFIX)]
    unfinished_from = min((int(name[:20]) for name in cleaned), default=None)
    for name in leftovers:
        if not name.endswith(SWAP_SUFFIX):
            files.remove(f"{directory}/{name}")
    swaps = [name for name in leftovers if name.endswith(SWAP_SUFFIX)]
    counting = sorted(int(name[:20]) for name in swaps if name.endswith(f".log{SWAP_SUFFIX}"))
    for base_offset in counting:
        if unfinished_from is None or base_offset < unfinished_from:
            _complete(files, directory, base_offset, names)
    for name in swaps:
        if files.exists(f"{directory}/{name}"):
            files.remove(f"{directory}/{name}")
    files.sync_directory(directory)
    return True


def _complete(files: Files, directory: str, base_offset: int, names: Sequence[str]) -> None:
    end_offset = _end_offset(files, segment_path(directory, base_offset, "log", SWAP_SUFFIX), base_offset)
    old = {int(name[:20]) for name in names if name.endswith(".log")}
    for path in retire_segments(
        files, directory, sorted(base for base in old if base_offset < base < end_offset)
    ):
        files.remove(path)
    finish_swap(files, directory, base_offset)


def _end_offset(files: Files, path: str, base_offset: int) -> int:
    end_offset = base_offset
    file = files.open(path)
    try:
        for _, header in scan_headers(file, 0, file.size(), base_offset):
            end_offset = header.last_offset + 1
    except DamagedBatch as error:
        raise CorruptLog(f"{path}: {error}") from error
    finally:
        file.close()
    return end_offset
