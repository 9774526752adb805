"""Every option of the source: what it accepts, and that what it refuses is named with what is allowed."""

from __future__ import annotations

import pytest

from pyspark_tidemill import DefaultSource
from tidemill.spark.client.cluster import EARLIEST, LATEST, TopicPartition
from tidemill.spark.options import PROTECTED, USED, BadOption, Options
from tidemill.spark.source import settings as source_settings
from tidemill.spark.source import stream_reader
from tidemill.spark.source.schema import source_schema
from tidemill.spark.source.settings import SourceSettings, batch_settings, stream_settings

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
BASE = {**SERVERS, "subscribe": "orders"}


def batch(**options: str) -> SourceSettings:
    return batch_settings({**BASE, **dotted(options)})


def stream(**options: str) -> SourceSettings:
    return stream_settings({**BASE, **dotted(options)})


def dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in options.items()}


BAD_IN_BATCH = {
    "startingOffsets": ("latest", "earliest"),
    "endingOffsets": ("earliest", "latest"),
    "startingoffsets": ("tomorrow", "JSON like"),
    "startingOffsetsByTimestamp": ('{"orders":{"0":"noon"}}', "JSON like"),
    "endingOffsetsByTimestamp": ("17", "JSON like"),
    "startingTimestamp": ("-5", "at least 0"),
    "endingTimestamp": ("now", "a whole number"),
    "startingOffsetsByTimestampStrategy": ("ignore", "one of error, latest"),
    "failOnDataLoss": ("perhaps", "one of true, false"),
    "includeHeaders": ("1", "one of true, false"),
    "minPartitions": ("0", "at least 1"),
    "maxRecordsPerPartition": ("-1", "at least 1"),
    "maxOffsetsPerTrigger": ("0", "at least 1"),
    "minOffsetsPerTrigger": ("x", "at least 1"),
    "maxTriggerDelay": ("soon", "units"),
    "fetchOffset.numRetries": ("0", "at least 1"),
    "fetchOffset.retryIntervalMs": ("-1", "at least 0"),
    "read.mode": ("telepathy", "one of wire, segments"),
    "segments.directories": ("data", "read.mode=segments"),
    "filterPushdown": ("yes", "one of true, false"),
    "commitGroupId": ("g", "readStream"),
    "driverRead.maxBytes": ("1000", "readStream"),
    "kafka.isolation.level": ("chaos", "one of read_uncommitted, read_committed"),
    "kafka.security.protocol": ("HTTPS", "one of PLAINTEXT, SSL"),
    "kafka.request.timeout.ms": ("0", "at least 1"),
    "kafka.max.partition.fetch.bytes": ("0", "at least 1"),
    "kafka.bootstrap.server": ("h:1", "kafka.bootstrap.servers"),
    "startingOffset": ("earliest", "startingOffsets"),
    "kafka.bootstrap.servers": ("nowhere", "HOST:PORT"),
}


@pytest.mark.parametrize("name", BAD_IN_BATCH)
def test_a_bad_value_is_refused_by_name_with_what_is_allowed(name: str) -> None:
    value, allowed = BAD_IN_BATCH[name]
    given = {**BASE, name: value}
    with pytest.raises(BadOption) as refusal:
        batch_settings(given)
        source_schema(given)
    assert name.lower() in str(refusal.value).lower()
    assert allowed in str(refusal.value)


@pytest.mark.parametrize("setting", PROTECTED)
def test_protected_settings_are_refused_with_the_reason(setting: str) -> None:
    with pytest.raises(BadOption, match="kafka." + setting) as refusal:
        batch_settings({**BASE, f"kafka.{setting}": "x"})
    assert PROTECTED[setting] in str(refusal.value)


@pytest.mark.parametrize(
    "name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", "filterPushdown"]
)
def test_a_stream_has_no_end_and_no_filters(name: str) -> None:
    with pytest.raises(BadOption, match=name):
        stream(**{name: "latest"})


@pytest.mark.parametrize("value", ["-1", "4 MB", "false"])
def test_the_limit_of_reads_in_the_driver_is_a_number(value: str) -> None:
    with pytest.raises(BadOption, match=r"driverRead\.maxBytes is .*a whole number of at least 0"):
        stream(driverRead__maxBytes=value)
    assert stream(driverRead__maxBytes="0").driver_read_bytes == 0
    assert stream().driver_read_bytes == 4 << 20


@pytest.mark.parametrize(
    "given", [{}, {"subscribe": "a", "assign": '{"a":[0]}'}, {"subscribe": "a", "subscribePattern": "a"}]
)
def test_exactly_one_option_says_what_to_read(given: dict[str, str]) -> None:
    with pytest.raises(BadOption, match="exactly one of subscribe, subscribePattern, assign"):
        batch_settings({**SERVERS, **given})


@pytest.mark.parametrize(
    ("name", "value"),
    [("subscribe", " , "), ("subscribePattern", "("), ("subscribePattern", " "), ("assign", "orders"), ("assign", "{}"),
     ("assign", '{"orders":0}'), ("assign", '{"orders":["0"]}'), ("assign", '{"orders":[-1]}'),
     ("assign", '{"orders":[]}')],
)  # fmt: skip
def test_what_to_read_must_make_sense(name: str, value: str) -> None:
    with pytest.raises(BadOption, match=name):
        batch_settings({**SERVERS, name: value})


@pytest.mark.parametrize(
    "value", ['{"orders":{"0":-3}}', '{"orders":{"x":1}}', '{"orders":[1]}', "[]", '{"orders":{"0":true}}']
)
def test_offsets_must_be_offsets(value: str) -> None:
    with pytest.raises(BadOption, match=r"startingOffsets .*-1 is latest and -2 earliest"):
        stream(startingOffsets=value)


def test_bootstrap_servers_must_be_there() -> None:
    with pytest.raises(BadOption, match=r"kafka\.bootstrap\.servers must be set"):
        batch_settings({"subscribe": "orders"})


def test_starts_lie_before_ends_and_name_the_same_partitions() -> None:
    with pytest.raises(BadOption, match="behind its end 5"):
        batch(startingOffsets='{"orders":{"0":6}}', endingOffsets='{"orders":{"0":5}}')
    with pytest.raises(BadOption, match="orders-1"):
        batch(startingOffsets='{"orders":{"0":6}}', endingOffsets='{"orders":{"0":7,"1":7}}')
    with pytest.raises(BadOption, match="at most 5"):
        stream(minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")
    with pytest.raises(BadOption, match=r"segments\.directories must be set"):
        batch(read__mode="segments")


def test_latest_and_earliest_by_partition_follow_the_same_rule() -> None:
    with pytest.raises(BadOption, match="startingOffsets is latest"):
        batch(startingOffsets='{"orders":{"0":-1}}')
    with pytest.raises(BadOption, match="endingOffsets is earliest"):
        batch(endingOffsets='{"orders":{"0":-2}}')
    assert stream(startingOffsets='{"orders":{"0":-1,"1":-2}}').start.offsets == {
        TopicPartition("orders", 0): LATEST,
        TopicPartition("orders", 1): EARLIEST,
    }


def test_defaults_are_those_of_the_connector_of_spark() -> None:
    assert batch().start.everywhere == EARLIEST
    assert stream().start.everywhere == LATEST
    settings = stream()
    assert settings.fails_on_data_loss
    assert not settings.reads_committed
    assert settings.max_trigger_delay_ms == 15 * 60_000
    assert (settings.offset_retries, settings.offset_retry_interval_ms) == (3, 1000)
    assert (
        settings.min_partitions
        is settings.max_records_per_partition
        is settings.max_offsets_per_trigger
        is None
    )


def test_names_come_in_any_case_and_a_timestamp_counts_before_offsets() -> None:
    settings = batch(
        STARTINGTIMESTAMP="17", startingOffsets="earliest", MinPartitions="4", maxtriggerdelay="2 min"
    )
    assert settings.start.timestamp_ms == 17
    assert settings.min_partitions == 4
    assert settings.max_trigger_delay_ms == 120_000


def test_only_a_start_that_cannot_move_is_fixed() -> None:
    assert stream(startingOffsets="earliest").start.is_fixed
    assert stream(startingOffsets='{"orders":{"0":4}}').start.is_fixed
    assert not stream().start.is_fixed
    assert not stream(startingOffsets='{"orders":{"0":-1}}').start.is_fixed
    assert not stream(startingTimestamp="5").start.is_fixed


def test_columns_pick_and_order_and_are_refused_by_name() -> None:
    assert source_schema({}).fieldNames() == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]
    assert source_schema({"columns": "offset, VALUE"}).fieldNames() == ["offset", "value"]
    assert source_schema({"includeHeaders": "true", "columns": "headers"}).fieldNames() == ["headers"]
    for value, allowed in {
        "price": "key, value",
        "headers": "includeHeaders=true",
        "": "key",
        "key,key": "key",
    }.items():
        with pytest.raises(BadOption, match="columns") as refusal:
            source_schema({"columns": value})
        assert allowed in str(refusal.value)


def test_a_schema_may_pick_columns_and_nothing_else() -> None:
    source = DefaultSource(dict(BASE))
    assert source.reader(source_schema({"columns": "value"})) is not None
    with pytest.raises(BadOption, match="value string"):
        from pyspark.sql.types import StructType

        source.reader(StructType().add("value", "string"))


def test_rates_are_refused_by_name_where_spark_would_stop_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 4.2 Spark cannot limit a batch of a Python source, and an available-now query would end too soon."""
    monkeypatch.setattr(stream_reader, "HAS_READ_LIMITS", False)
    given = {**BASE, "startingOffsets": "earliest"}
    schema = source_schema({})
    assert not hasattr(stream_reader.stream_reader(schema, given), "prepareForTriggerAvailableNow")
    with pytest.raises(BadOption, match=r"maxOffsetsPerTrigger .*pyspark 4\.2 or newer"):
        stream_reader.stream_reader(schema, {**given, "maxOffsetsPerTrigger": "5"})
    with pytest.raises(BadOption, match=r"minOffsetsPerTrigger .*pyspark 4\.2 or newer"):
        stream_reader.stream_reader(schema, {**given, "minOffsetsPerTrigger": "5"})


def test_security_settings() -> None:
    secure = Options(
        {**BASE, "kafka.security.protocol": "sasl_ssl", "kafka.sasl.mechanism": "SCRAM-SHA-512",
         "kafka.sasl.jaas.config": 'org.x.ScramLoginModule required username="ada" password="love\\"lace";',
         "kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": "ca.pem"}
    ).kafka  # fmt: skip
    assert secure.sasl is not None
    assert secure.tls is not None
    assert (secure.sasl.mechanism, secure.sasl.username, secure.tls.ca_file) == (
        "SCRAM-SHA-512",
        "ada",
        "ca.pem",
    )
    assert "love" not in repr(secure)
    with pytest.raises(BadOption, match="PEM"):
        _ = Options(
            {**BASE, "kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "a.jks"}
        ).kafka
    with pytest.raises(BadOption, match="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
        _ = Options({**BASE, "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}).kafka
    with pytest.raises(BadOption, match=r"kafka\.sasl\.username"):
        _ = Options({**BASE, "kafka.security.protocol": "SASL_SSL"}).kafka


@pytest.mark.parametrize("setting", USED)
def test_a_setting_that_counts_as_used_is_read(setting: str) -> None:
    read: set[str] = set()

    class Watched(Options):
        def text(self, name: str, default: str | None = None) -> str | None:
            read.add(name)
            return super().text(name, default)

        def __contains__(self, name: str) -> bool:
            read.add(name)
            return super().__contains__(name)

    secure = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.username": "u", "kafka.sasl.password": "p"}
    stores = {f"kafka.ssl.{kind}store.location": "x" for kind in ("key", "trust")}
    types = {f"kafka.ssl.{kind}store.type": "PEM" for kind in ("key", "trust")}
    source_settings._settings(Watched({**BASE, **secure, **stores, **types}), "earliest", None)
    assert f"kafka.{setting}" in read


PEM = "-----BEGIN CERTIFICATE----- QUJD REVG -----END CERTIFICATE-----"


def test_a_client_certificate_may_be_text() -> None:
    given = {"kafka.security.protocol": "SSL", "kafka.ssl.keystore.certificate.chain": PEM}
    given["kafka.ssl.keystore.key"] = PEM.replace("CERTIFICATE", "PRIVATE KEY")
    tls = Options({**SERVERS, **given}).kafka.tls
    assert tls is not None
    assert tls.certificate_text == "-----BEGIN CERTIFICATE-----\nQUJD\nREVG\n-----END CERTIFICATE-----\n"
    assert (tls.key_text or "").splitlines()[1:3] == ["QUJD", "REVG"]
    assert "QUJD" not in repr(tls)
    for name in ("kafka.ssl.keystore.key", "kafka.ssl.keystore.certificate.chain"):
        with pytest.raises(BadOption, match=f"option {name} is not enough"):
            _ = Options({**SERVERS, "kafka.security.protocol": "SSL", name: PEM}).kafka
    with pytest.raises(BadOption, match=r"kafka\.ssl\.certificate\.location is set beside"):
        _ = Options({**SERVERS, **given, "kafka.ssl.certificate.location": "x"}).kafka
