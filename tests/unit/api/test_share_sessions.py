"""Share sessions: epochs, partitions, limits."""

from __future__ import annotations

import pytest

from tidemill.api.share_sessions import (
    FINAL_EPOCH,
    LAST_EPOCH,
    MOST_PARTITIONS,
    SessionKey,
    SharedPartition,
    ShareSessions,
    update_session,
)
from tidemill.model.errors import ApiError, ErrorCode

ANN, BOB = SessionKey("group", "ann"), SessionKey("group", "bob")
A, B, C = (SharedPartition(bytes(16), index) for index in range(3))


def code_of(sessions: ShareSessions, key: SessionKey, epoch: int) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        sessions.proceed(key, epoch)
    return caught.value.code


def test_epochs_count_from_one() -> None:
    sessions = ShareSessions(10)
    session = sessions.open(ANN, [A])
    assert code_of(sessions, ANN, 2) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.proceed(ANN, 1) is sessions.proceed(ANN, 2) is session
    assert code_of(sessions, ANN, 2) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.proceed(ANN, FINAL_EPOCH) is session
    assert code_of(sessions, BOB, 1) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_the_count_of_epochs_begins_again() -> None:
    sessions = ShareSessions(10)
    session = sessions.open(ANN, [A])
    session.epoch = LAST_EPOCH
    sessions.proceed(ANN, LAST_EPOCH)
    assert session.epoch == 1


def test_a_new_session_replaces_the_old_one_of_its_member() -> None:
    sessions = ShareSessions(1)
    first = sessions.open(ANN, [A])
    second = sessions.open(ANN, [B])
    assert sessions.get(ANN) is second is not first and len(sessions) == 1


def test_nobody_loses_a_session_to_another() -> None:
    sessions = ShareSessions(1)
    sessions.open(ANN, [A])
    with pytest.raises(ApiError) as caught:
        sessions.open(BOB, [A])
    assert caught.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.remove(ANN)
    assert not sessions.has_members("group")
    sessions.open(BOB, [A])
    assert sessions.has_members("group")


def test_partitions_come_and_go_and_take_turns() -> None:
    sessions = ShareSessions(1)
    session = sessions.open(ANN, [A, B])
    update_session(session, [B, C], [A])
    assert list(session.partitions) == [B, C]
    firsts = set()
    for epoch in (1, 2):
        sessions.proceed(ANN, epoch)
        assert sorted(session.rotated()) == [B, C]
        firsts.add(session.rotated()[0])
    assert firsts == {B, C}
    update_session(session, [], [B, C])
    assert session.rotated() == []


def test_a_session_has_no_more_partitions_than_a_request_can_name() -> None:
    session = ShareSessions(1).open(ANN, [])
    update_session(session, [SharedPartition(bytes(16), index) for index in range(MOST_PARTITIONS)], [])
    with pytest.raises(ApiError) as caught:
        update_session(session, [SharedPartition(bytes(16), MOST_PARTITIONS)], [])
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_session_that_ends_lets_go_of_its_connection() -> None:
    sessions = ShareSessions(2)
    forgotten = []
    sessions.open(ANN, []).forget_connection = lambda: forgotten.append("first")
    sessions.open(ANN, []).forget_connection = lambda: forgotten.append("second")
    assert forgotten == ["first"]
    sessions.remove(ANN)
    assert forgotten == ["first", "second"]
