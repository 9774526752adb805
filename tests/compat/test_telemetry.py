"""Telemetry of clients (KIP-714) as of a broker on which nobody subscribed to any: every question has its answer.

On a broker of the test's own: Kafka offers these calls only with a metrics reporter that takes telemetry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.model.errors import ErrorCode
from tidemill.model.ids import ZERO_UUID
from tidemill.testing import EmbeddedBroker, WireClient
from tidemill.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from tidemill.wire.messages.push_telemetry import PushTelemetryRequest

KNOWN_ID = bytes(range(16))


@pytest.fixture(scope="module")
def client() -> Iterator[WireClient]:
    with EmbeddedBroker() as broker, WireClient(broker.bootstrap) as connection:
        yield connection


def subscription(client: WireClient, instance_id: bytes) -> Any:
    answer = client.call(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id))
    assert answer.error_code == 0
    return answer


def push(client: WireClient, **fields: Any) -> int:
    """The error code of a push that would be right but for these fields."""
    told = subscription(client, KNOWN_ID)
    right = {
        "client_instance_id": KNOWN_ID,
        "subscription_id": told.subscription_id,
        "compression_type": told.accepted_compression_types[0],
        "metrics": b"metrics",
    }
    return int(client.call(PushTelemetryRequest(**(right | fields))).error_code)


def test_a_client_without_an_id_gets_one_of_its_own(client: WireClient) -> None:
    given = [subscription(client, ZERO_UUID).client_instance_id for _ in range(2)]
    assert len({ZERO_UUID, *given}) == 3
    assert subscription(client, given[0]).client_instance_id == given[0], "and keeps it"


def test_nothing_is_asked_of_the_client(client: WireClient) -> None:
    told = subscription(client, KNOWN_ID)
    assert told.requested_metrics == []
    assert (told.push_interval_ms, told.telemetry_max_bytes) == (300_000, 1_048_576)
    assert sorted(told.accepted_compression_types) == [0, 1, 2, 3, 4]
    assert told.delta_temporality
    assert subscription(client, KNOWN_ID).subscription_id == told.subscription_id


def test_a_push_under_the_subscription_is_taken(client: WireClient) -> None:
    assert push(client) == 0
    assert push(client, metrics=b"", terminating=True) == 0


def test_a_push_that_is_wrong_is_told_why(client: WireClient) -> None:
    stale = subscription(client, KNOWN_ID).subscription_id + 1
    assert push(client, subscription_id=stale) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert push(client, client_instance_id=ZERO_UUID) == ErrorCode.INVALID_REQUEST
    assert push(client, compression_type=9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert push(client, metrics=bytes(1_048_577)) == ErrorCode.TELEMETRY_TOO_LARGE
    assert push(client, metrics=bytes(1_048_576)) == 0
    too_much = {"metrics": bytes(1_048_577), "subscription_id": stale}
    assert push(client, **too_much) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "what decides is checked first"
