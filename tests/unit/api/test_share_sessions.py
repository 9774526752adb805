"""Share sessions: epochs, partitions, limits."""

from __future__ import annotations

import pytest

from tidemill.api import share_sessions
from tidemill.api.share_sessions import (
    FINAL_EPOCH,
    LAST_EPOCH,
    SessionKey,
    SharedPartition,
    ShareSessions,
)
from tidemill.model.errors import ApiError, ErrorCode

ANN, BOB, CAROL = (SessionKey("group", name) for name in ("ann", "bob", "carol"))
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
    sessions.update(session, [B, C], [A])
    assert list(session.partitions) == [B, C]
    firsts = set()
    for epoch in (1, 2):
        sessions.proceed(ANN, epoch)
        assert sorted(session.rotated()) == [B, C]
        firsts.add(session.rotated()[0])
    assert firsts == {B, C}
    sessions.update(session, [], [B, C])
    assert session.rotated() == []


def test_a_partition_named_for_its_acknowledgements_alone_is_forgotten() -> None:
    sessions = ShareSessions(1)
    session = sessions.open(ANN, [A, B])
    sessions.update(session, [A, C], [A, C])
    assert list(session.partitions) == [B]


def test_all_sessions_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "MOST_PARTITIONS", 3)
    sessions = ShareSessions(3)
    ann, bob = sessions.open(ANN, [A, B]), sessions.open(BOB, [A])
    for refused in (lambda: sessions.update(bob, [B], []), lambda: sessions.open(CAROL, [C])):
        with pytest.raises(ApiError) as caught:
            refused()
        assert caught.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert sessions.get(CAROL) is None and len(sessions) == 2
    sessions.update(ann, [], [A])
    sessions.update(bob, [B], [])
    sessions.remove(ANN)
    sessions.open(CAROL, [C])


def test_a_session_that_ends_lets_go_of_its_connection() -> None:
    sessions = ShareSessions(2)
    forgotten = []
    sessions.open(ANN, []).forget_connection = lambda: forgotten.append("first")
    sessions.open(ANN, []).forget_connection = lambda: forgotten.append("second")
    assert forgotten == ["first"]
    sessions.remove(ANN)
    assert forgotten == ["first", "second"]
