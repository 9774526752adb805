"""A share partition by transcript: what each call delivers, and what is in flight afterwards."""

from __future__ import annotations

import pytest
from share_transcript import LIMITS, LOCK_MS, ShareTranscript

from tidemill.coordination.share.partition import SharePartition
from tidemill.coordination.share.partition_contract import FetchedBatch
from tidemill.coordination.share.partition_runs import RecordState
from tidemill.coordination.share.persister import StateBatch
from tidemill.model.errors import ApiError, ErrorCode


def refused(share: ShareTranscript, member: str, *texts: str) -> ErrorCode:
    before = share.state
    with pytest.raises(ApiError) as caught:
        share.begin(member, *texts)
    assert share.state == before, "a refused acknowledgement changed something"
    return caught.value.code


# -- acquiring --------------------------------------------------------------------------------------------


def test_members_get_different_records() -> None:
    share = ShareTranscript()
    assert share.acquire("ann", 10) == "0-9 x1"
    assert share.acquire("bob", 5) == "10-14 x1"
    assert share.state == "0-9 acquired x1 ann; 10-14 acquired x1 bob"


def test_batches_are_taken_whole() -> None:
    share = ShareTranscript(batch=5)
    assert share.acquire("ann", 7) == "0-9 x1"
    assert share.acquire("ann", 1) == "10-14 x1"


def test_an_exact_wish_cuts_a_batch() -> None:
    share = ShareTranscript(batch=5)
    assert share.acquire("ann", 7, is_exact=True) == "0-6 x1"
    assert share.acquire("bob", 7, is_exact=True) == "7-13 x1"


def test_ranges_are_told_in_the_size_that_the_member_likes() -> None:
    share = ShareTranscript(batch=4)
    assert share.acquire("ann", 20, batch_size=6) == "0-7 x1, 8-15 x1, 16-19 x1"
    assert len(share.partition.runs) == 3


def test_a_big_batch_is_one_run_until_a_record_differs() -> None:
    share = ShareTranscript(batch=100)
    share.acquire("ann", 1)
    assert len(share.partition.runs) == 1
    share.acknowledge("ann", "50 reject")
    assert len(share.partition.runs) == 3
    assert share.state == "0-49 acquired x1 ann; 50 archived x1; 51-99 acquired x1 ann"


def test_no_more_than_the_limit_is_in_flight() -> None:
    share = ShareTranscript(batch=5, limits=LIMITS._replace(max_record_locks=12))
    assert share.acquire("ann", 100) == "0-14 x1", "the batch that reaches the limit is taken whole"
    assert share.acquire("bob", 100) == ""
    share.acknowledge("ann", "0-4 accept")
    assert share.acquire("bob", 100) == "15-19 x1"


def test_an_exact_wish_stops_at_the_limit() -> None:
    share = ShareTranscript(batch=5, limits=LIMITS._replace(max_record_locks=12))
    assert share.acquire("ann", 100, is_exact=True) == "0-11 x1"
    assert share.acquire("ann", 100, is_exact=True) == ""


def test_released_records_are_delivered_again_although_the_partition_is_full() -> None:
    share = ShareTranscript(batch=5, limits=LIMITS._replace(max_record_locks=10))
    share.acquire("ann", 10)
    share.acknowledge("ann", "7 release")
    assert share.acquire("bob", 10) == "7 x2"


def test_a_later_batch_is_taken_along_with_an_earlier_one_that_came_back() -> None:
    share = ShareTranscript(batch=5)
    share.acquire("ann", 10)
    share.acknowledge("ann", "0-4 release")
    assert share.acquire("bob", 15) == "0-4 x2, 10-19 x1"


# -- acknowledging ----------------------------------------------------------------------------------------


def test_the_start_moves_over_what_is_done() -> None:
    share = ShareTranscript()
    share.acquire("ann", 10)
    share.acknowledge("ann", "3-4 accept", "6 reject")
    assert share.partition.start_offset == 0
    share.acknowledge("ann", "0-2 accept,gap,reject")
    assert share.partition.start_offset == 5
    share.acknowledge("ann", "5 accept", "7-9 accept")
    assert (share.partition.start_offset, share.state) == (10, "")


def test_many_small_acknowledgements_become_one_run() -> None:
    share = ShareTranscript(batch=100)
    share.acquire("ann", 1)
    for offset in [*range(98, 0, -2), *range(1, 99, 2)]:
        share.acknowledge("ann", f"{offset} accept")
    assert share.state == "0 acquired x1 ann; 1-98 acknowledged x1; 99 acquired x1 ann"
    assert len(share.partition.runs) == 3


def test_words_for_each_record() -> None:
    share = ShareTranscript()
    share.acquire("ann", 5)
    share.acknowledge("ann", "0-4 release,accept,reject,gap,release")
    assert share.state == "0 available x1; 1 acknowledged x1; 2-3 archived x1; 4 available x1"


def test_nobody_touches_a_record_that_waits_for_its_write() -> None:
    share = ShareTranscript()
    share.acquire("ann", 10)
    transition = share.begin("ann", "0-4 release")
    assert share.state == "0-4 acquired x1 ann -> available; 5-9 acquired x1 ann"
    assert refused(share, "ann", "0-4 accept") is ErrorCode.INVALID_RECORD_STATE
    assert share.acquire("bob", 5) == "10-14 x1"
    share.wait(LOCK_MS)
    assert share.state.startswith("0-4 acquired x1 ann -> available; 5-14 available x1")
    share.finish(transition)
    assert share.acquire("bob", 10) == "0-9 x2"


def test_a_failed_write_changes_nothing() -> None:
    share = ShareTranscript()
    share.acquire("ann", 5)
    before = share.state
    transition = share.begin("ann", "0-4 accept")
    assert transition is not None
    share.partition.roll_back(transition)
    assert share.state == before
    share.acknowledge("ann", "0-4 accept")
    assert share.partition.start_offset == 5


def test_a_lock_that_ends_during_a_write_that_fails_ends_then() -> None:
    share = ShareTranscript()
    share.acquire("ann", 5)
    transition = share.begin("ann", "0-4 accept")
    share.wait(LOCK_MS)
    assert transition is not None
    share.partition.roll_back(transition)
    share.wait(0)
    assert share.state == "0-4 available x1"


@pytest.mark.parametrize(
    ("member", "texts", "code"),
    [
        ("bob", ["0-4 accept"], ErrorCode.INVALID_RECORD_STATE),
        ("ann", ["5-9 accept"], ErrorCode.INVALID_RECORD_STATE),
        ("ann", ["0-9 accept"], ErrorCode.INVALID_RECORD_STATE),
        ("ann", ["0-3 accept", "3-4 accept"], ErrorCode.INVALID_RECORD_STATE),
        ("ann", ["0-20 accept"], ErrorCode.INVALID_REQUEST),
        ("ann", ["70 accept"], ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_a_member_may_not_acknowledge(member: str, texts: list[str], code: ErrorCode) -> None:
    share = ShareTranscript()
    share.acquire("ann", 5)
    share.acquire("cid", 5)
    assert refused(share, member, *texts) is code


def test_nothing_is_acknowledged_if_one_part_is_refused() -> None:
    share = ShareTranscript()
    share.acquire("ann", 5)
    share.acquire("bob", 5)
    assert refused(share, "ann", "0-4 accept", "5-9 accept") is ErrorCode.INVALID_RECORD_STATE


def test_a_record_is_acknowledged_once() -> None:
    share = ShareTranscript()
    share.acquire("ann", 10)
    share.acknowledge("ann", "5-9 accept")
    assert refused(share, "ann", "5-9 accept") is ErrorCode.INVALID_RECORD_STATE
    share.acknowledge("ann", "0-4 accept")
    assert refused(ShareTranscript(), "ann", "0-4 accept") is ErrorCode.INVALID_RECORD_STATE


def test_what_lies_below_the_start_is_acknowledged_without_effect() -> None:
    share = ShareTranscript()
    share.acquire("ann", 10)
    share.acknowledge("ann", "0-4 accept")
    assert share.begin("ann", "0-4 accept") is None
    share.acknowledge("ann", "0-9 accept")
    assert share.partition.start_offset == 10


def test_a_session_that_ends_gives_back_only_its_own() -> None:
    share = ShareTranscript()
    share.acquire("ann", 5)
    share.acquire("bob", 5)
    share.release("ann")
    assert share.state == "0-4 available x1; 5-9 acquired x1 bob"


# -- locks and limits -------------------------------------------------------------------------------------


def test_a_lock_times_out() -> None:
    share = ShareTranscript()
    share.acquire("ann", 5)
    share.wait(LOCK_MS - 1)
    assert share.state == "0-4 acquired x1 ann"
    share.wait(1)
    assert share.state == "0-4 available x1"
    assert refused(share, "ann", "0-4 accept") is ErrorCode.INVALID_RECORD_STATE
    assert share.acquire("bob", 5) == "0-4 x2"


def test_renewing_moves_the_lock_and_writes_nothing() -> None:
    share = ShareTranscript()
    share.acquire("ann", 5)
    share.wait(LOCK_MS - 1)
    assert share.begin("ann", "0-1 renew") is None
    share.wait(1)
    assert share.state == "0-1 acquired x1 ann; 2-4 available x1"
    share.wait(LOCK_MS)
    assert share.state == "0-4 available x1"


def test_an_old_lock_does_not_end_a_new_one() -> None:
    share = ShareTranscript()
    share.acquire("ann", 5)
    share.wait(LOCK_MS - 5)
    share.acknowledge("ann", "0-4 release")
    share.acquire("bob", 5)
    share.wait(10)
    assert share.state == "0-4 acquired x2 bob"


def test_locks_that_are_over_leave_no_trail() -> None:
    share = ShareTranscript(batch=1, end=500, limits=LIMITS._replace(max_record_locks=5000))
    share.acquire("ann", 1)
    for offset in range(1, 500):
        share.wait(1)
        share.acquire("bob", 1)
        share.acknowledge("bob", f"{offset} accept" if offset % 2 else f"{offset} renew")
        assert len(share.partition._locks) <= 100 + 2 * len(share.partition.runs)
    share.wait(LOCK_MS)
    assert {run.state for run in share.partition.runs} <= {RecordState.AVAILABLE, RecordState.ACKNOWLEDGED}


def test_the_last_allowed_delivery_is_the_last() -> None:
    share = ShareTranscript(batch=1, limits=LIMITS._replace(delivery_count_limit=2))
    share.acquire("ann", 1)
    share.acknowledge("ann", "0 release")
    assert share.acquire("ann", 1) == "0 x2"
    share.acknowledge("ann", "0 release")
    assert share.partition.start_offset == 1


@pytest.mark.parametrize("how", ["release", "session", "lock"])
def test_every_way_back_counts(how: str) -> None:
    share = ShareTranscript(batch=1, end=1)
    delivered = []
    while got := share.acquire("ann", 1):
        delivered.append(got)
        if how == "release":
            share.acknowledge("ann", "0 release")
        elif how == "session":
            share.release("ann")
        else:
            share.wait(LOCK_MS)
    assert delivered == ["0 x1", "0 x2", "0 x3", "0 x4", "0 x5"]
    assert share.partition.start_offset == 1


def test_suspect_records_come_in_smaller_parts_and_at_last_alone() -> None:
    share = ShareTranscript(batch=8, end=8)
    delivered = []
    for _ in range(5):
        got = share.acquire("ann", 8)
        delivered.append(got)
        first, _, last = got.split()[0].partition("-")
        share.acknowledge("ann", f"{first}-{last or first} release")
    assert delivered == ["0-7 x1", "0-7 x2", "0-7 x3", "0-3 x4", "0 x5"]
    assert share.state == "1-3 available x4; 4-7 available x3"


def test_suspect_records_are_not_mixed_with_others() -> None:
    share = ShareTranscript(batch=4, end=12)
    share.acquire("ann", 8)
    for _ in range(3):
        share.acknowledge("ann", "4-7 release")
        share.acquire("ann", 4)
    share.acknowledge("ann", "0-3 release")
    share.wait(LOCK_MS)
    assert share.state == "0-3 available x1; 4-7 available x4"
    assert share.acquire("bob", 12) == "0-3 x2", "ends before the suspects"
    assert share.acquire("bob", 12) == "4 x5"


# -- the log ----------------------------------------------------------------------------------------------


def test_the_log_start_passes_records_in_flight() -> None:
    share = ShareTranscript()
    share.acquire("ann", 10)
    share.acknowledge("ann", "0-1 release", "8 release")
    share.partition.move_log_start(7)
    assert (share.partition.start_offset, share.state) == (
        7,
        "7 acquired x1 ann; 8 available x1; 9 acquired x1 ann",
    )
    share.acknowledge("ann", "2-7 accept")
    assert share.partition.start_offset == 8
    share.partition.move_log_start(50)
    assert (share.partition.start_offset, share.partition.next_fetch_offset, share.state) == (50, 50, "")


def test_the_log_start_passes_records_that_wait_for_their_write() -> None:
    share = ShareTranscript()
    share.acquire("ann", 10)
    transition = share.begin("ann", "0-9 release")
    share.partition.move_log_start(4)
    share.finish(transition)
    assert share.state == "4-9 available x1"


def test_offsets_that_compaction_took_are_passed_over() -> None:
    share = ShareTranscript()
    share.batches = [FetchedBatch(3, 4), FetchedBatch(10, 14), FetchedBatch(20, 22)]
    assert share.acquire("ann", 100) == "3-4 x1, 10-14 x1, 20-22 x1"
    assert share.partition.start_offset == 3
    share.acknowledge("ann", "3-4 accept", "10-14 accept")
    assert share.partition.start_offset == 20


def test_a_batch_that_vanished_after_its_release_is_passed_over() -> None:
    share = ShareTranscript(batch=5, end=15)
    share.acquire("ann", 15)
    share.acknowledge("ann", "0-9 release")
    share.batches = [FetchedBatch(7, 9), FetchedBatch(10, 14)]
    assert share.acquire("bob", 5) == "7-9 x2"
    assert share.partition.start_offset == 7


def test_hidden_batches_are_never_delivered() -> None:
    share = ShareTranscript()
    share.batches = [
        FetchedBatch(0, 4),
        FetchedBatch(5, 5, True),
        FetchedBatch(6, 9, True),
        FetchedBatch(10, 11),
    ]
    assert share.acquire("ann", 100) == "0-4 x1, 10-11 x1"
    share.acknowledge("ann", "0-4 accept")
    assert share.partition.start_offset == 10


def test_a_log_of_hidden_batches_only_moves_the_start() -> None:
    share = ShareTranscript()
    share.batches = [FetchedBatch(0, 4, True), FetchedBatch(5, 5, True)]
    assert share.acquire("ann", 100) == ""
    assert (share.partition.start_offset, share.partition.next_fetch_offset) == (6, 6)


# -- what is written --------------------------------------------------------------------------------------


def test_a_write_says_where_the_partition_starts_when_it_is_done() -> None:
    share = ShareTranscript()
    share.acquire("ann", 10)
    later = share.begin("ann", "5-6 accept")
    first = share.begin("ann", "0-3 accept", "4 release")
    assert later is not None and first is not None
    assert later.write.start_offset == 0 and later.write.delivery_complete_count == 2
    assert later.write.batches == (StateBatch(5, 6, RecordState.ACKNOWLEDGED, 1),)
    assert first.write.start_offset == 4 and first.write.delivery_complete_count == 2
    assert first.write.batches == (
        StateBatch(0, 3, RecordState.ACKNOWLEDGED, 1),
        StateBatch(4, 4, RecordState.AVAILABLE, 1),
    )


def test_the_count_of_the_last_write_is_behind_the_start_of_those_under_way() -> None:
    """Nobody writes after it, so what it says is what people see: the group is done with everything."""
    share = ShareTranscript(batch=5, end=20)
    share.acquire("ann", 15)
    share.acknowledge("ann", "1-2 accept")
    first = share.begin("ann", "0 accept")
    last = share.begin("ann", "4-9 accept", "10-14 release")
    assert first is not None and (first.write.start_offset, first.write.delivery_complete_count) == (3, 0)
    assert last is not None and (last.write.start_offset, last.write.delivery_complete_count) == (0, 6)


def test_a_reload_brings_back_what_was_written() -> None:
    share = ShareTranscript(batch=5, end=20)
    share.acquire("ann", 15)
    share.acknowledge("ann", "5-6 release", "7-9 accept", "12 reject")
    share.reload()
    assert share.state == (
        "0-4 available x0; 5-6 available x1; 7-9 acknowledged x1; 10-11 available x0; 12 archived x1"
    )
    assert share.acquire("bob", 100) == "0-4 x1, 5-6 x2, 10-11 x1, 13-19 x1"


def test_a_reload_starts_behind_what_is_done() -> None:
    done = [StateBatch(10, 14, RecordState.ACKNOWLEDGED, 1), StateBatch(15, 19, RecordState.ARCHIVED, 5)]
    partition = SharePartition.load(10, done)
    assert (partition.start_offset, partition.next_fetch_offset, len(partition.runs)) == (20, 20, 0)


def test_a_time_out_is_written() -> None:
    share = ShareTranscript()
    share.acquire("ann", 5)
    share.wait(LOCK_MS)
    share.reload()
    assert share.acquire("bob", 5) == "0-4 x2"


def test_nothing_is_passed_over_behind_a_batch_that_was_cut() -> None:
    share = ShareTranscript(limits=LIMITS._replace(max_record_locks=3))
    share.batches = [FetchedBatch(0, 4), FetchedBatch(5, 6, True), FetchedBatch(7, 9)]
    assert share.acquire("ann", 100, is_exact=True) == "0-2 x1"
    share.acknowledge("ann", "0-2 accept")
    assert share.acquire("ann", 100, is_exact=True) == "3-4 x1"
