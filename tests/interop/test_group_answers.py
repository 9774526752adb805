"""Groups of all kinds, asked by the requests of the classic protocol: Kafka's answers, and its records.

The lives are in `classic_lives`, `offset_lives` and `migration_lives`; each is lived on our broker and on Kafka.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from broker_process import BrokerProcess
from classic_lives import CLASSIC_LIVES, SETTINGS
from decoded_records import decoded, without_chance
from group_talk import Life, Talk
from kafka_peer import KafkaPeer
from kafka_tools import DumpedRecord, complaints, dump_log, dumped_records
from migration_lives import MIGRATION_LIVES, under_a_policy
from offset_lives import OFFSET_LIVES
from tidemill_peer import TidemillPeer

from tidemill.testing.embedded import create_topic

LIVES = (*OFFSET_LIVES, *CLASSIC_LIVES, *MIGRATION_LIVES)
OURS = SETTINGS | {"offsets.topic.num.partitions": 1}
KAFKAS = OURS | {"group.consumer.assignment.interval.ms": 0}
PARTITIONS = 4
CHANCE = ("timestamp", "topicid", "clienthost", "version")


class Lived(NamedTuple):
    answers: dict[str, list[str]]
    records: dict[str, list[str]]


def lived(broker: BrokerProcess, lives: Iterable[Life]) -> Lived:
    answers = {}
    with broker:
        for topic in ("t", "u"):
            create_topic(broker.bootstrap, topic, PARTITIONS, {})
        with Talk(broker.bootstrap) as talk:
            talk.prepare("t", "u")
            for life in lives:
                talk.lines = []
                life(talk)
                talk.hang_up()
                answers[life.__name__] = talk.lines
        broker.stop()
        log = Path(broker.data_directory) / "__consumer_offsets-0"
        text = dump_log(sorted(log.glob("*.log")), "--offsets-decoder")
        assert not complaints(text), text
    return Lived(answers, _by_group(dumped_records(text), talk))


def _by_group(records: Iterable[DumpedRecord], talk: Talk) -> dict[str, list[str]]:
    """Those of groups that were never anything but classic; the others are compared elsewhere."""
    found = defaultdict(list)
    of_newer_protocols = set()
    for record in records:
        if record.key is None or not record.key.startswith("{"):
            continue  # a marker
        key = json.loads(record.key)["data"]
        if "group" not in key:
            of_newer_protocols.add(key["groupId"])
        elif not _is_before_the_first(record):
            found[key["group"]].append(talk.plain(f"{key}: {_plain(record.payload)}"))
    return {group: lines for group, lines in found.items() if group not in of_newer_protocols}


def _is_before_the_first(record: DumpedRecord) -> bool:
    """Kafka stores a group at its first join, when it has no members."""
    return "generation" in (record.payload or "") and _plain(record.payload)["data"]["generation"] == 0


def _plain(payload: str | None) -> Any:
    return without_chance(decoded(payload), CHANCE, is_in_order=False)


@pytest.fixture(scope="module")
def both() -> tuple[Lived, Lived]:
    return lived(TidemillPeer(settings=OURS), LIVES), lived(KafkaPeer(settings=KAFKAS), LIVES)


@pytest.mark.parametrize("life", LIVES, ids=lambda life: str(life.__name__))
def test_the_answers_are_kafkas(both: tuple[Lived, Lived], life: Life) -> None:
    ours, theirs = (each.answers[life.__name__] for each in both)
    assert len(theirs) > 10
    assert ours == theirs


def test_the_records_are_kafkas(both: tuple[Lived, Lived]) -> None:
    ours, theirs = (each.records for each in both)
    assert len(theirs) > 20
    assert ours == theirs


@pytest.mark.parametrize("policy", ["upgrade", "downgrade", "disabled"])
def test_groups_keep_to_the_policy_of_migration(policy: str) -> None:
    changes = {"group.consumer.migration.policy": policy}
    ours = lived(TidemillPeer(settings=OURS | changes), [under_a_policy])
    theirs = lived(KafkaPeer(settings=KAFKAS | changes), [under_a_policy])
    assert ours.answers == theirs.answers
