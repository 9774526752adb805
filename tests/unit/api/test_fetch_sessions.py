from __future__ import annotations

import pytest

from tidemill.api import fetch_sessions
from tidemill.api.fetch_sessions import MINIMUM_REST_MS, FetchSession, FetchSessionCache, TopicKey
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.ports.randomness import SeededRandomness
from tidemill.wire.fetch_codec import FetchPartition, FetchRequest, FetchResult, FetchTopic, ForgottenTopic

TOPIC_ID = bytes(range(16))
KEY = TopicKey("", TOPIC_ID)


def request(
    session_id: int, epoch: int, partitions: tuple[int, ...] = (), forgotten: tuple[int, ...] = ()
) -> FetchRequest:
    topics = [FetchTopic("", TOPIC_ID, [FetchPartition(p, -1, 0, -1, -1, 1000) for p in partitions])]
    return FetchRequest(
        -1, -1, 0, 1, 1000, 0, session_id, epoch,
        topics if partitions else [],
        [ForgottenTopic("", TOPIC_ID, list(forgotten))] if forgotten else [], "",
    )  # fmt: skip


def opened(cache: FetchSessionCache, partitions: tuple[int, ...], now_ms: int = 0) -> FetchSession:
    first = request(0, 0, partitions)
    assert cache.open(first, now_ms) is None
    session = cache.maybe_create(first, now_ms)
    assert session is not None
    return session


@pytest.fixture
def cache() -> FetchSessionCache:
    return FetchSessionCache(2, SeededRandomness(1))


def test_an_incremental_request_patches_the_session(cache: FetchSessionCache) -> None:
    session = opened(cache, (0, 1, 2))
    same = cache.open(request(session.session_id, 1, (3,), forgotten=(0,)), 1)
    assert same is session
    assert [partition for _, partition in session.partitions] == [1, 2, 3]


def test_only_news_is_told(cache: FetchSessionCache) -> None:
    session = opened(cache, (0,))
    result = FetchResult(0, 0, high_watermark=5, last_stable_offset=5, log_start_offset=0)
    assert session.tell((KEY, 0), result)
    assert not session.tell((KEY, 0), result)
    assert session.tell((KEY, 0), result._replace(high_watermark=6))
    assert session.tell((KEY, 0), result._replace(high_watermark=6, records=b"x"))
    assert session.tell((KEY, 0), FetchResult(0, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert session.tell((KEY, 0), result), "after an error everything is news"


def test_a_partition_with_data_goes_to_the_end(cache: FetchSessionCache) -> None:
    session = opened(cache, (0, 1))
    session.tell((KEY, 0), FetchResult(0, records=b"x"))
    assert [partition for _, partition in session.partitions] == [1, 0]


def test_a_forgotten_partition_is_not_told(cache: FetchSessionCache) -> None:
    session = opened(cache, (0, 1))
    cache.open(request(session.session_id, 1, forgotten=(0,)), 0)
    assert not session.tell((KEY, 0), FetchResult(0, records=b"x"))


def test_a_wrong_epoch_or_id_is_refused(cache: FetchSessionCache) -> None:
    session = opened(cache, (0,))
    with pytest.raises(ApiError) as refusal:
        cache.open(request(session.session_id, 2), 0)
    assert refusal.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    with pytest.raises(ApiError) as refusal:
        cache.open(request(session.session_id + 1, 1), 0)
    assert refusal.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_final_epoch_closes_the_session(cache: FetchSessionCache) -> None:
    session = opened(cache, (0,))
    assert cache.open(request(session.session_id, -1, (0,)), 0) is None
    assert len(cache) == 0


def test_a_full_cache_replaces_only_what_has_rested(cache: FetchSessionCache) -> None:
    oldest = opened(cache, (0,), now_ms=0)
    opened(cache, (0,), now_ms=10)
    third = request(0, 0, (0,))
    assert cache.maybe_create(third, MINIMUM_REST_MS - 1) is None
    assert cache.maybe_create(third, MINIMUM_REST_MS) is not None
    with pytest.raises(ApiError):
        cache.open(request(oldest.session_id, 1), MINIMUM_REST_MS)
    assert len(cache) == 2


def test_all_sessions_together_remember_a_bounded_number_of_partitions(
    cache: FetchSessionCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS", 5)
    first = opened(cache, (0, 1, 2))
    assert cache.maybe_create(request(0, 0, (0, 1, 2)), 0) is None, "answered without a session"
    second = opened(cache, (0, 1))
    assert cache.open(request(second.session_id, 1, (2,)), 1) is second, "this request is served"
    assert len(cache) == 1, "but the session has grown too far"
    with pytest.raises(ApiError) as caught:
        cache.open(request(second.session_id, 2), 2)
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    cache.open(request(first.session_id, -1), 3)
    assert opened(cache, (0, 1, 2, 3, 4)), "what was closed makes room"
