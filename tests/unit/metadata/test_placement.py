from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.metadata.image import BrokerRegistration
from tidemill.metadata.placement import place_replicas, position_after
from tidemill.model.errors import ApiError, ErrorCode


def broker(broker_id: int, rack: str | None = None, fenced: bool = False) -> BrokerRegistration:
    return BrokerRegistration(broker_id, 0, bytes(16), (), rack=rack, fenced=fenced)


def test_the_example_of_the_module() -> None:
    racks = {1: "a", 4: "a", 2: "b", 5: "b", 3: "c", 6: "c"}
    brokers = [broker(id, rack) for id, rack in racks.items()]
    assert place_replicas(brokers, 0, 6, 3) == [
        [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 1], [6, 1, 2]
    ]  # fmt: skip
    assert position_after(brokers, 6) == 6 and position_after(brokers, 9) is None


@given(
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9),
    partitions=st.integers(1, 40),
    start=st.integers(0, 50),
    data=st.data(),
)
def test_replicas_are_distinct_spread_over_racks_and_leaders_even(
    racks: list[str | None], partitions: int, start: int, data: st.DataObject
) -> None:
    brokers = [broker(id, rack) for id, rack in enumerate(racks)]
    wanted = data.draw(st.integers(1, len(brokers)))
    placed = place_replicas(brokers, start, partitions, wanted)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == wanted
        assert len({racks[id] for id in replicas}) == min(wanted, len(set(racks)))
    leaders = Counter(replicas[0] for replicas in placed)
    counts = [leaders[id] for id in range(len(brokers))]
    assert max(counts) - min(counts) <= 1


def test_the_followers_of_one_leader_vary() -> None:
    placed = place_replicas([broker(id) for id in range(4)], 0, 12, 2)
    assert {replicas[1] for replicas in placed if replicas[0] == 0} == {1, 2, 3}


def test_fenced_brokers_follow_only_when_needed_and_never_lead() -> None:
    brokers = [broker(1), broker(2), broker(3, fenced=True)]
    assert all(set(replicas) == {1, 2} for replicas in place_replicas(brokers, 0, 8, 2))
    assert all(replicas[2] == 3 for replicas in place_replicas(brokers, 0, 8, 3))


@pytest.mark.parametrize(("brokers", "wanted"), [([], 1), ([broker(1)], 2), ([broker(1, fenced=True)], 1)])
def test_impossible_wishes(brokers: list[BrokerRegistration], wanted: int) -> None:
    with pytest.raises(ApiError) as refusal:
        place_replicas(brokers, 0, 1, wanted)
    assert refusal.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
