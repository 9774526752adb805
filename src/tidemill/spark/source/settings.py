"""The options of a read, checked as a whole before any broker is asked.

Names and meanings are those of Spark's Kafka connector. Three options choose what to read, exactly one of
which must be there (`subscribe`, `subscribePattern`, `assign`); where to start and to end is said by
timestamp for all partitions, by timestamp for each, by offset for each, or in a word, and the first of
these that is there counts, as in that connector.

Beyond it: `columns`, `commitGroupId`, `driverRead.maxBytes`, `filterPushdown`, `read.mode` with `segments.directories`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidemill.spark.client.cluster import EARLIEST, LATEST, TopicPartition
from tidemill.spark.client.settings import ClientSettings
from tidemill.spark.errors import BadOption
from tidemill.spark.options import Options
from tidemill.spark.source.offsets import PartitionOffsets, parse_numbers, parse_partitions

CHOICES = ("subscribe", "subscribePattern", "assign")
ENDINGS = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
RATES = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
KNOWN = (
    *CHOICES, *ENDINGS, *RATES, "startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp",
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition", "includeHeaders",
    "groupIdPrefix", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs",
    "columns", "commitGroupId", "driverRead.maxBytes", "filterPushdown", "read.mode", "segments.directories",
)  # fmt: skip
WIRE, SEGMENTS = "wire", "segments"
DEFAULT_FETCH_BYTES = 8 << 20
DEFAULT_DRIVER_READ_BYTES = 4 << 20


class Choice(NamedTuple):
    """Which partitions: of these topics, of topics whose names match, or exactly these."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


class Limit(NamedTuple):
    """Where a read starts or ends: one word or time for all partitions, or offsets or times by partition."""

    option: str
    everywhere: int | None = None
    offsets: PartitionOffsets | None = None
    timestamp_ms: int | None = None
    timestamps_ms: PartitionOffsets | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether asking twice gives the same place, however much was written in between.

        A start by time is fixed where a record was found: see `Planner.found_every_time`.
        """
        if self.everywhere is not None:
            return self.everywhere == EARLIEST
        return self.offsets is not None and LATEST not in self.offsets.values()


class SourceSettings(NamedTuple):
    client: ClientSettings
    choice: Choice
    start: Limit
    end: Limit | None
    is_latest_without_match: bool
    fails_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    reads_committed: bool
    fetch_bytes: int
    fetch_wait_ms: int
    offset_retries: int
    offset_retry_interval_ms: int
    commit_group: str | None
    pushes_filters: bool
    segment_directories: tuple[str, ...]
    driver_read_bytes: int
    """The largest micro-batch that is read where it is planned; 0 for none."""

    @property
    def counts_tasks(self) -> bool:
        """Whether the user has said how many tasks there should be."""
        return bool(self.min_partitions or self.max_records_per_partition)


def batch_settings(given: Mapping[str, str]) -> SourceSettings:
    """Checked options of a batch read; raises BadOption."""
    options = Options(given)
    settings = _settings(options, default_start="earliest", end=_limit(options, "ending", "latest"))
    assert settings.end is not None
    if LATEST in _words(settings.start):
        raise BadOption("startingOffsets", "is latest, which reads nothing", "earliest, or JSON without -1")
    if EARLIEST in _words(settings.end):
        raise BadOption("endingOffsets", "is earliest, which reads nothing", "latest, or JSON without -2")
    _check_order(settings.start, settings.end)
    for name in options.given(("commitGroupId", "driverRead.maxBytes")):
        raise BadOption(name, "is for streams", "spark.readStream")
    return settings


def stream_settings(given: Mapping[str, str]) -> SourceSettings:
    """Checked options of a stream; raises BadOption."""
    options = Options(given)
    for name in options.given(ENDINGS):
        raise BadOption(name, "is not for streams", "spark.read, or no end at all")
    if "filterPushdown" in options:
        raise BadOption(
            "filterPushdown", "is not for streams", "spark.read; Spark pushes no filters into streams"
        )
    return _settings(options, default_start="latest", end=None)


def _settings(options: Options, default_start: str, end: Limit | None) -> SourceSettings:
    options.check_known(KNOWN)
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    most, least = (options.whole_number(name, minimum=1) for name in RATES[:2])
    if most is not None and least is not None and least > most:
        raise BadOption(RATES[1], f"is {least}, more than {RATES[0]}", f"at most {most}")
    retry_interval_ms = options.number("fetchOffset.retryIntervalMs", 1000)
    return SourceSettings(
        client=options.kafka,
        choice=_choice(options),
        start=_limit(options, "starting", default_start),
        end=end,
        is_latest_without_match=strategy == "latest",
        fails_on_data_loss=options.boolean("failOnDataLoss", True),
        min_partitions=options.whole_number("minPartitions", minimum=1),
        max_records_per_partition=options.whole_number("maxRecordsPerPartition", minimum=1),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", 15 * 60_000),
        reads_committed=options.reads_committed,
        fetch_bytes=options.number("kafka.max.partition.fetch.bytes", DEFAULT_FETCH_BYTES, minimum=1),
        fetch_wait_ms=options.number("kafka.fetch.max.wait.ms", 500),
        offset_retries=options.number("fetchOffset.numRetries", 3, minimum=1),
        offset_retry_interval_ms=retry_interval_ms,
        commit_group=_group(options),
        pushes_filters=options.boolean("filterPushdown", False),
        segment_directories=_directories(options),
        driver_read_bytes=options.number("driverRead.maxBytes", DEFAULT_DRIVER_READ_BYTES),
    )


def _choice(options: Options) -> Choice:
    given = options.given(CHOICES)
    if len(given) != 1:
        problem = f"{' and '.join(given)} are both set" if given else "must be set"
        raise BadOption(" / ".join(CHOICES), problem, f"exactly one of {', '.join(CHOICES)}")
    if given[0] == "assign":
        return Choice(partitions=tuple(parse_partitions("assign", options.json("assign", '{"topic":[0,1]}'))))
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(options.words("subscribe")))
        if not topics:
            raise BadOption("subscribe", "names no topic", "topics with commas between them")
        return Choice(topics=topics)
    pattern = options.required("subscribePattern", "a regular expression for names of topics")
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadOption("subscribePattern", f"is {pattern!r}: {error}", "a regular expression") from None
    return Choice(pattern=pattern)


def _limit(options: Options, side: str, default: str) -> Limit:
    """The first of `...Timestamp`, `...OffsetsByTimestamp`, `...Offsets` that is set."""
    by_time, each_time, by_offset = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if by_time in options:
        return Limit(by_time, timestamp_ms=options.number(by_time, 0))
    if each_time in options:
        value = options.json(each_time, 'JSON like {"topic":{"0":1700000000000}}')
        return Limit(each_time, timestamps_ms=parse_numbers(each_time, value, minimum=0))
    text = (options.text(by_offset, default) or "").strip()
    if text.lower() in ("earliest", "latest"):
        return Limit(by_offset, everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    value = options.json(by_offset, 'earliest, latest, or JSON like {"topic":{"0":23}}')
    return Limit(by_offset, offsets=parse_numbers(by_offset, value, minimum=EARLIEST))


def _words(limit: Limit) -> set[Any]:
    """-1 and -2 where they occur in this limit."""
    return {limit.everywhere, *(limit.offsets or {}).values()}


def _check_order(start: Limit, end: Limit) -> None:
    for first, last in ((start.offsets, end.offsets), (start.timestamps_ms, end.timestamps_ms)):
        if first is None or last is None:
            continue
        if first.keys() != last.keys():
            odd = ", ".join(map(str, sorted(first.keys() ^ last.keys())))
            raise BadOption(
                f"{start.option} / {end.option}", f"do not both name {odd}", "the same partitions"
            )
        for where in first:
            if first[where] > last[where] >= 0:
                problem = f"starts {where} at {first[where]}, behind its end {last[where]}"
                raise BadOption(start.option, problem, f"at most {last[where]}")


def _group(options: Options) -> str | None:
    if "commitGroupId" not in options:
        return None
    return options.required("commitGroupId", "the name of a consumer group")


def _directories(options: Options) -> tuple[str, ...]:
    mode = options.choice("read.mode", (WIRE, SEGMENTS), WIRE)
    directories = tuple(options.words("segments.directories"))
    if mode == SEGMENTS and not directories:
        raise BadOption(
            "segments.directories", "must be set for read.mode=segments", "the brokers' data directories"
        )
    if mode == WIRE and directories:
        raise BadOption("segments.directories", "has no meaning here", "read.mode=segments beside it")
    return directories
