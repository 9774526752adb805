"""Every API this broker speaks: one row each, the only place where they are listed.

`docs/apis.md` is generated from this table (`python -m tidemill.api.table`).
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

from tidemill.api.batch_check import MAX_EXPANSION, MAX_UNPACKED_BYTES
from tidemill.wire.schema import Message
from tidemill.wire.schema_values import MAX_ELEMENTS


class Api(NamedTuple):
    """One API: its versions, where its messages are declared, which handler answers it."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_since: int
    handler: str
    """`family.method`; the family is an attribute of `Handlers`."""
    messages: str = ""
    """Module of `tidemill.wire.messages`; empty for the two that are coded by hand."""
    before_authentication: bool = False
    is_callback: bool = False
    """The handler is given `respond` to call once, maybe much later; the others are coroutines."""
    gaps: str = ""

    def supports(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def request_class(self) -> type[Message]:
        return self._message("Request")

    def response_class(self) -> type[Message]:
        return self._message("Response")

    def _message(self, kind: str) -> type[Message]:
        module = importlib.import_module(f"tidemill.wire.messages.{self.messages}")
        found: type[Message] = getattr(module, self.name + kind)
        return found


PRODUCE, FETCH, API_VERSIONS, SHARE_FETCH = 0, 1, 18, 78
UNPACKED = (
    "where records must be looked at (a compacted topic, a topic with its own `compression.type`), a batch may unpack "
    f"to {MAX_EXPANSION} times `max.message.bytes`, at most {MAX_UNPACKED_BYTES >> 20} MiB or `max.message.bytes` if "
    "that is more; Kafka sets no limit"
)
NO_LOGGERS = (
    "no resources of the types BROKER_LOGGER and CLIENT_METRICS: they are refused with INVALID_REQUEST"
)

APIS = (
    Api(PRODUCE, "Produce", 3, 13, 9, "produce.handle", gaps=UNPACKED),
    Api(FETCH, "Fetch", 4, 18, 12, "fetch.handle", gaps="no preferred read replica, no tiered storage"),
    Api(2, "ListOffsets", 1, 11, 6, "offsets.list_offsets", "list_offsets"),
    Api(3, "Metadata", 0, 13, 9, "metadata.metadata", "metadata"),
    Api(8, "OffsetCommit", 2, 10, 8, "group_offsets.offset_commit", "offset_commit"),
    Api(9, "OffsetFetch", 1, 10, 6, "group_offsets.offset_fetch", "offset_fetch"),
    Api(10, "FindCoordinator", 0, 6, 3, "coordinators.find_coordinator", "find_coordinator"),
    Api(11, "JoinGroup", 0, 9, 6, "groups.join_group", "join_group", is_callback=True),
    Api(12, "Heartbeat", 0, 4, 4, "groups.heartbeat", "heartbeat", is_callback=True),
    Api(13, "LeaveGroup", 0, 5, 4, "groups.leave_group", "leave_group", is_callback=True),
    Api(14, "SyncGroup", 0, 5, 4, "groups.sync_group", "sync_group", is_callback=True),
    Api(15, "DescribeGroups", 0, 6, 5, "groups.describe_groups", "describe_groups"),
    Api(16, "ListGroups", 0, 5, 3, "groups.list_groups", "list_groups"),
    Api(API_VERSIONS, "ApiVersions", 0, 4, 3, "versions.api_versions", "api_versions", True),
    Api(19, "CreateTopics", 2, 7, 5, "topics.create_topics", "create_topics"),
    Api(20, "DeleteTopics", 1, 6, 4, "topics.delete_topics", "delete_topics"),
    Api(21, "DeleteRecords", 0, 2, 2, "offsets.delete_records", "delete_records"),
    Api(22, "InitProducerId", 0, 5, 2, "producers.init_producer_id", "init_producer_id"),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4, "offsets.offset_for_leader_epoch", "offset_for_leader_epoch"),
    Api(24, "AddPartitionsToTxn", 0, 5, 3, "transactions.add_partitions_to_txn", "add_partitions_to_txn"),
    Api(25, "AddOffsetsToTxn", 0, 4, 3, "transactions.add_offsets_to_txn", "add_offsets_to_txn"),
    Api(26, "EndTxn", 0, 5, 3, "transactions.end_txn", "end_txn"),
    Api(27, "WriteTxnMarkers", 1, 2, 1, "transactions.write_txn_markers", "write_txn_markers"),
    Api(28, "TxnOffsetCommit", 0, 5, 3, "transactions.txn_offset_commit", "txn_offset_commit"),
    Api(32, "DescribeConfigs", 1, 4, 4, "configs.describe_configs", "describe_configs", gaps=NO_LOGGERS),
    Api(33, "AlterConfigs", 0, 2, 2, "configs.alter_configs", "alter_configs", gaps=NO_LOGGERS),
    Api(35, "DescribeLogDirs", 1, 5, 2, "logs.describe_log_dirs", "describe_log_dirs"),
    Api(37, "CreatePartitions", 0, 3, 2, "topics.create_partitions", "create_partitions"),
    Api(42, "DeleteGroups", 0, 2, 2, "groups.delete_groups", "delete_groups"),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1, "configs.incremental_alter_configs", "incremental_alter_configs",
        gaps=NO_LOGGERS),
    Api(47, "OffsetDelete", 0, 0, 32767, "group_offsets.offset_delete", "offset_delete"),
    Api(60, "DescribeCluster", 0, 2, 0, "metadata.describe_cluster", "describe_cluster"),
    Api(61, "DescribeProducers", 0, 0, 0, "producers.describe_producers", "describe_producers"),
    Api(65, "DescribeTransactions", 0, 0, 0, "transactions.describe_transactions", "describe_transactions"),
    Api(66, "ListTransactions", 0, 2, 0, "transactions.list_transactions", "list_transactions"),
    Api(68, "ConsumerGroupHeartbeat", 0, 1, 0, "consumer_groups.heartbeat", "consumer_group_heartbeat"),
    Api(69, "ConsumerGroupDescribe", 0, 1, 0, "consumer_groups.describe", "consumer_group_describe"),
    Api(71, "GetTelemetrySubscriptions", 0, 0, 0, "telemetry.get_subscriptions", "get_telemetry_subscriptions"),
    Api(72, "PushTelemetry", 0, 0, 0, "telemetry.push", "push_telemetry",
        gaps="metrics are accepted and dropped until the broker exports them"),
    Api(75, "DescribeTopicPartitions", 0, 0, 0, "metadata.describe_topic_partitions", "describe_topic_partitions"),
    Api(76, "ShareGroupHeartbeat", 1, 1, 0, "share_groups.heartbeat", "share_group_heartbeat"),
    Api(77, "ShareGroupDescribe", 1, 1, 0, "share_groups.describe", "share_group_describe"),
    Api(SHARE_FETCH, "ShareFetch", 1, 2, 0, "share_fetch.handle", "share_fetch", gaps="lists no node endpoints"),
    Api(79, "ShareAcknowledge", 1, 2, 0, "share_acknowledge.share_acknowledge", "share_acknowledge",
        gaps="lists no node endpoints"),
    Api(83, "InitializeShareGroupState", 0, 0, 0, "share_states.initialize", "initialize_share_group_state"),
    Api(84, "ReadShareGroupState", 0, 0, 0, "share_states.read", "read_share_group_state"),
    Api(85, "WriteShareGroupState", 0, 1, 0, "share_states.write", "write_share_group_state"),
    Api(86, "DeleteShareGroupState", 0, 0, 0, "share_states.delete", "delete_share_group_state"),
    Api(87, "ReadShareGroupStateSummary", 0, 1, 0, "share_states.summarize", "read_share_group_state_summary"),
    Api(90, "DescribeShareGroupOffsets", 0, 1, 0, "share_group_offsets.describe", "describe_share_group_offsets"),
    Api(91, "AlterShareGroupOffsets", 0, 0, 0, "share_group_offsets.alter", "alter_share_group_offsets"),
    Api(92, "DeleteShareGroupOffsets", 0, 0, 0, "share_group_offsets.delete", "delete_share_group_offsets"),
)  # fmt: skip

API_BY_KEY = {api.key: api for api in APIS}


def render() -> str:
    """The page `docs/apis.md`."""
    lines = [
        "# APIs",
        "",
        "Generated from `tidemill.api.table` by `python -m tidemill.api.table > docs/apis.md`; a test keeps it true.",
        "Version ranges are those of Apache Kafka 4.3.1. Unknown tagged fields are ignored. An API that is not",
        "listed is not advertised, and a request for it closes the connection, as in Kafka.",
        "",
        f"All requests: the arrays of one request may have {MAX_ELEMENTS:,} elements together, which Kafka does not",
        "limit; one with more closes the connection. There are no quotas, so `throttle_time_ms` is always 0.",
        "",
        "| key | API | versions | flexible from | handler | gaps |",
        "|---|---|---|---|---|---|",
    ]
    for api in APIS:
        versions = f"{api.min_version}-{api.max_version}"
        lines.append(
            f"| {api.key} | {api.name} | {versions} | v{api.flexible_since} | `{api.handler}` | {api.gaps} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")
