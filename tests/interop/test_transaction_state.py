"""`__transaction_state`, written by us and by Kafka in the same life of producers: the same records, read by either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from broker_process import BrokerProcess
from confluent_kafka import Producer
from kafka_peer import KafkaPeer
from kafka_tools import complaints, dump_log, dumped_records
from raw_transactions import RawProducer, is_stable
from tidemill_peer import TidemillPeer
from transaction_reading import committed_values
from waiting import wait_until

from tidemill.coordination.partitioning import partition_for
from tidemill.testing import WireClient
from tidemill.testing.embedded import create_topic
from tidemill.wire.messages.describe_transactions import DescribeTransactionsRequest

TOPIC = "orders"
VERSIONS = {"first-version": 1, "second-version": 2}
"""Transactional ids, and the version of the protocol that their producers speak."""
CHANCE = {
    "producerId",
    "previousProducerId",
    "transactionLastUpdateTimestampMs",
    "transactionStartTimestampMs",
}
PEERS = [(KafkaPeer, TidemillPeer), (TidemillPeer, KafkaPeer)]
PATIENCE_SECONDS = 30


def wait_for_state(bootstrap: str, transactional_id: str, state: str) -> None:
    def is_there() -> bool:
        with WireClient(bootstrap) as connection:
            answer = connection.call(DescribeTransactionsRequest(transactional_ids=[transactional_id]))
        return bool(answer.transaction_states[0].transaction_state == state)

    wait_until(is_there, f"{state} of {transactional_id}", PATIENCE_SECONDS)


def transact(producer: RawProducer, *values: bytes) -> None:
    """Write these; a producer of the first version adds its partition before."""
    if producer.version == 1:
        assert producer.add(TOPIC) == 0
    assert producer.produce(TOPIC, *values) == 0


def live(bootstrap: str, transactional_id: str) -> None:
    """A commit and an abort, each to its end."""
    with RawProducer(bootstrap, transactional_id, VERSIONS[transactional_id]).begin() as producer:
        for is_commit, state in ((True, "CompleteCommit"), (False, "CompleteAbort")):
            transact(producer, b"committed" if is_commit else b"aborted")
            assert producer.end(commit=is_commit) == 0
            wait_for_state(bootstrap, transactional_id, state)


def decoded(broker: BrokerProcess) -> dict[str, list[Any]]:
    """For each transactional id the values as Kafka's decoder prints them, without times and ids that chance made."""
    with broker:
        create_topic(broker.bootstrap, TOPIC, 1, {})
        for transactional_id in VERSIONS:
            live(broker.bootstrap, transactional_id)
        broker.stop()
        return {each: _values(Path(broker.data_directory), each) for each in VERSIONS}


def _values(directory: Path, transactional_id: str) -> list[Any]:
    log = directory / f"__transaction_state-{partition_for(transactional_id, 50)}"
    text = dump_log(sorted(log.glob("*.log")), "--transaction-log-decoder")
    assert not complaints(text), text
    records = [(json.loads(each.key or ""), json.loads(each.payload or "")) for each in dumped_records(text)]
    for _, value in records:
        value["data"].update({name: "..." for name in CHANCE if value["data"].get(name, -1) != -1})
    own = {"transactionalId": transactional_id}
    return [(key["type"], value) for key, value in records if key["data"] == own]


def test_kafkas_decoder_sees_the_same_records(tmp_path: Path) -> None:
    ours = decoded(TidemillPeer(data_directory=tmp_path / "ours"))
    theirs = decoded(KafkaPeer(data_directory=tmp_path / "theirs"))
    assert {name: len(values) for name, values in theirs.items()} == dict.fromkeys(VERSIONS, 7)
    assert ours == theirs


@pytest.mark.parametrize(("writer", "reader"), PEERS)
@pytest.mark.parametrize("transactional_id", VERSIONS)
def test_an_open_transaction_moves_with_the_directory(
    writer: type[BrokerProcess], reader: type[BrokerProcess], transactional_id: str, tmp_path: Path
) -> None:
    """Its successor ends it where it is now, and readers go on."""
    with writer(data_directory=tmp_path / "data") as first:
        create_topic(first.bootstrap, TOPIC, 1, {})
        live(first.bootstrap, transactional_id)
        with RawProducer(first.bootstrap, transactional_id, VERSIONS[transactional_id]).begin() as producer:
            transact(producer, b"left open")
    with reader(data_directory=tmp_path / "data") as second:
        wait_for_state(second.bootstrap, transactional_id, "Ongoing")
        assert not is_stable(second.bootstrap, TOPIC)
        successor = Producer({"bootstrap.servers": second.bootstrap, "transactional.id": transactional_id})
        successor.init_transactions(PATIENCE_SECONDS)
        wait_until(lambda: is_stable(second.bootstrap, TOPIC), "the abort of what was left open")
        successor.begin_transaction()
        successor.produce(TOPIC, b"of the successor")
        successor.commit_transaction(PATIENCE_SECONDS)
        assert committed_values(second.bootstrap, TOPIC) == [b"committed", b"of the successor"]
