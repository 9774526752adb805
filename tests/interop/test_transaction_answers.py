"""Transactions, lived through in raw requests on our broker and on Kafka: the same answers, and the same records.

What differs on purpose is not asked here: a fenced producer that asks for an epoch while its successor has a
transaction open, batches of a producer without epoch (refused here), transactional batches without producer (refused
here), repeated requests for a producer id at the last epoch (an unknown error there), and requests that Kafka never
answers (AddPartitionsToTxn for no transaction at all).
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import transaction_batch_scenes as batches
import transaction_id_scenes as ids
import transaction_late_scenes as late
import transaction_offset_scenes as offsets
from broker_process import BrokerProcess
from kafka_peer import KafkaPeer
from kafka_tools import complaints, dump_log, dumped_records
from tidemill_peer import TidemillPeer
from transaction_life import Life
from transaction_transcript import GROUP

SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "group.initial.rebalance.delay.ms": 0,
}
KAFKAS_SETTINGS = SETTINGS | {"group.consumer.assignment.interval.ms": 0}
SCENES = [
    offsets.before_the_first_group,
    ids.ids_without_transactions, ids.ids_of_transactions, ids.ids_while_open, ids.adding, ids.adding_batched, ids.ends,
    ids.mixed_versions, ids.held_markers, ids.fencing, ids.timed_out, ids.deleted_topics, ids.listing,
    batches.idempotent_batches,
    batches.transactional_batches, batches.several_at_once, batches.markers, batches.aborted_lists, offsets.offsets,
    offsets.offsets_of_members, offsets.offsets_of_two, late.late_states,
]  # fmt: skip
LATER_SCENES = [late.late_lives]
"""After a restart."""
OFFSET_COMMIT = '"type":"1"'
MARKER = re.compile(r"producerId: (-?\d+) .*endTxnMarker: (\w+)")
ADDED_ONE_BY_ONE = {"several"}
"""A request for several partitions adds them in as many steps here."""
PRODUCERS = ("producerId", "previousProducerId", "nextProducerId")
CHANCE = ("transactionLastUpdateTimestampMs", "transactionStartTimestampMs", "commitTimestamp", "topicId")


class Lived(NamedTuple):
    answers: list[tuple[str, Any]]
    states: dict[str, list[Any]]
    """By transactional id."""
    offsets: list[Any]


def lived(broker: BrokerProcess) -> Lived:
    answers: list[tuple[str, Any]] = []
    names: dict[int, str] = {}
    with broker:
        for scenes in (SCENES, LATER_SCENES):
            for scene in scenes:
                with Life(broker.bootstrap, scene.__name__, names) as life:
                    life.warm_up(*([] if scene is offsets.before_the_first_group else [GROUP]))
                    scene(life)
                    answers += life.answers
            broker.stop()
            if scenes is SCENES:
                broker.start()
        directory = Path(broker.data_directory)
        return Lived(answers, _states(directory, names), _offsets(directory, names))


def _states(directory: Path, names: dict[int, str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for record in dumped_records(_dumped(directory / "__transaction_state-0", "--transaction-log-decoder")):
        key, value = json.loads(record.key or ""), json.loads(record.payload or "")
        found.setdefault(key["data"]["transactionalId"], []).append(_without_chance(value, names))
    return found


def _offsets(directory: Path, names: dict[int, str]) -> list[Any]:
    """Committed offsets, and the ends of the transactions that some of them belong to."""
    found: list[Any] = []
    for line in _dumped(directory / "__consumer_offsets-0", "--offsets-decoder").splitlines():
        if marker := MARKER.search(line):
            found.append((names.get(int(marker[1])), marker[2]))
        elif line.startswith("|") and OFFSET_COMMIT in line:
            (record,) = dumped_records(line)
            is_tombstone = record.payload is None or not record.payload.startswith("{")
            value = None if is_tombstone else _without_chance(json.loads(record.payload or ""), names)
            found.append((json.loads(record.key or "")["data"], value))
    return found


def _dumped(log: Path, decoder: str) -> str:
    text = dump_log(sorted(log.glob("*.log")), decoder)
    assert not complaints(text), text
    return text


def _without_chance(value: dict[str, Any], names: dict[int, str]) -> dict[str, Any]:
    fields = value["data"]
    fields |= {name: "..." for name in CHANCE if fields.get(name, -1) != -1}
    fields |= {name: names.get(fields[name], fields[name]) for name in PRODUCERS if name in fields}
    for topic in fields.get("transactionPartitions") or ():
        topic["partitionIds"].sort()
    return value


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lived, Lived]:
    directory = tmp_path_factory.mktemp("lives")
    ours = lived(TidemillPeer(data_directory=directory / "ours", settings=SETTINGS))
    theirs = lived(KafkaPeer(data_directory=directory / "theirs", settings=KAFKAS_SETTINGS))
    return ours, theirs


def test_the_answers_are_kafkas(both: tuple[Lived, Lived]) -> None:
    ours, theirs = both
    assert [about for about, _ in ours.answers] == [about for about, _ in theirs.answers]
    found = zip(ours.answers, theirs.answers, strict=True)
    assert not [(about, our, their) for (about, our), (_, their) in found if our != their]


def test_kafkas_decoder_sees_the_same_states(both: tuple[Lived, Lived]) -> None:
    ours, theirs = both
    assert len(theirs.states) > 80
    assert ours.states.keys() == theirs.states.keys()
    both_states = ((name, ours.states[name], each) for name, each in theirs.states.items())
    assert {name for name, our, their in both_states if our != their} == ADDED_ONE_BY_ONE


def test_kafkas_decoder_sees_the_same_offsets(both: tuple[Lived, Lived]) -> None:
    ours, theirs = both
    assert len(theirs.offsets) > 40
    assert _tombstones_in_order(ours.offsets) == _tombstones_in_order(theirs.offsets)


def _tombstones_in_order(records: list[Any]) -> list[Any]:
    """Those of one group come in the order of a hash table there."""
    ordered: list[Any] = []
    for is_tombstone, run in itertools.groupby(records, key=lambda record: record[1] is None):
        together = list(run)
        ordered += sorted(together, key=str) if is_tombstone else together
    return ordered
