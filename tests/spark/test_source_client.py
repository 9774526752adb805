"""The blocking client: silence, proofs of identity, TLS, and a broker that comes back."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from cluster_under_test import Cluster
from pyspark.sql.streaming.datasource import ReadAllAvailable
from source_rows import rows, stream_reader
from tls_proxy import TlsProxy

from tidemill.model.errors import ErrorCode
from tidemill.spark.client.cluster import LATEST, BrokerError, TopicPartition, kept_cluster
from tidemill.spark.client.cluster import Cluster as Client
from tidemill.spark.client.connection import Connection
from tidemill.spark.client.sasl import Scram
from tidemill.spark.client.settings import ClientSettings, SaslSettings
from tidemill.spark.errors import BrokerUnavailable
from tidemill.testing import SubprocessBroker


def settings(*bootstrap: str, timeout_ms: int = 3000) -> ClientSettings:
    return ClientSettings(bootstrap, request_timeout_ms=timeout_ms)


def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_scram_as_in_the_standard() -> None:
    """The example of RFC 7677."""
    sasl = SaslSettings("SCRAM-SHA-256", "user", "pencil")
    conversation = Scram(sasl, nonce="rOprNGfwEbeRWgbNEkqO")
    assert conversation.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = conversation.final(challenge)
    assert proof.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    conversation.finish(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    with pytest.raises(BrokerUnavailable, match="signature is wrong"):
        conversation.finish(b"v=" + b"A" * 43 + b"=")


def test_scram_refuses_a_challenge_for_somebody_else() -> None:
    conversation = Scram(SaslSettings("SCRAM-SHA-512", "user", "pencil"), nonce="mine")
    with pytest.raises(BrokerUnavailable, match="not for us"):
        conversation.final(b"r=yours,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    with pytest.raises(BrokerUnavailable, match="not for us"):
        conversation.final(b"r=mine1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1")


def test_an_address_where_nobody_listens_is_named() -> None:
    address = nobody()
    with pytest.raises(BrokerUnavailable, match=f"no connection to {address}"):
        Client(settings(address)).call_any(None)  # type: ignore[arg-type]
    with pytest.raises(BrokerUnavailable, match=address):
        rows(address, subscribe="orders", kafka__request__timeout__ms=300)


def test_the_first_server_that_answers_is_enough(cluster: Cluster, topic: str) -> None:
    with Client(settings(nobody(), cluster.bootstrap)) as client:
        assert client.partitions([topic]) == {topic: [0]}


def test_a_kept_cluster_stays_connected_until_something_fails(cluster: Cluster, topic: str) -> None:
    mine = settings(cluster.bootstrap, timeout_ms=2999)
    with kept_cluster(mine) as first:
        assert first.partitions([topic]) == {topic: [0]}
        connection = first.connection(cluster.bootstrap)
    with kept_cluster(mine) as second:
        assert second is first and second.connection(cluster.bootstrap) is connection
    assert not connection.is_closed
    with pytest.raises(KeyError), kept_cluster(mine):
        raise KeyError("requests may be under way")
    assert connection.is_closed
    others: list[Client] = []

    def elsewhere() -> None:
        with kept_cluster(mine) as other:
            others.append(other)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert others[0] is not first


def test_a_coordinator_is_remembered_until_somebody_is_asked_in_vain(cluster: Cluster) -> None:
    class Counting(Client):
        found = 0

        def _find_coordinator(self, key: str, kind: int) -> str:
            self.found += 1
            return super()._find_coordinator(key, kind)

    with Counting(settings(cluster.bootstrap)) as client:
        address = client.retrying(lambda: client.coordinator("group"))
        before = client.found
        assert client.coordinator("group") == address
        assert client.found == before
        client.forget_leaders()
        assert client.coordinator("group") == address
        assert client.found == before + 1


def test_errors_of_a_broker_are_named(cluster: Cluster) -> None:
    with Client(settings(cluster.bootstrap, timeout_ms=500)) as client, pytest.raises(BrokerError) as refusal:
        client.list_offsets({TopicPartition("no-such-topic", 0): LATEST}, committed=False)
    assert refusal.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "no-such-topic-0: UNKNOWN_TOPIC_OR_PARTITION" in str(refusal.value)


def test_a_peer_that_never_answers_is_no_broker() -> None:
    """It takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BrokerUnavailable, match="gave no answer"):
            Connection(address, settings(address, timeout_ms=200))


def test_tls_with_a_trusted_and_an_unknown_authority(tmp_path: Path) -> None:
    behind = nobody()
    with TlsProxy(tmp_path, behind) as proxy, SubprocessBroker(listen=behind, advertise=proxy.address):
        secure = {"kafka__security__protocol": "SSL", "kafka__request__timeout__ms": 3000}
        trusted = secure | {"kafka__ssl__ca__location": proxy.certificate}
        assert rows(proxy.address, subscribePattern="nothing-of-this-name", **trusted) == []
        assert proxy.connections > 0
        with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            rows(proxy.address, subscribePattern=".*", **secure)


def test_a_stream_outlives_a_restart_of_its_broker() -> None:
    with SubprocessBroker() as broker:
        topic = Cluster(broker.bootstrap).topic()
        query = stream_reader(broker.bootstrap, subscribe=topic, startingOffsets="earliest")
        start = query.initialOffset()
        broker.kill()
        broker.start()
        assert query.reportLatestOffset() is None
        assert query.partitions(start, start) == []
        assert query.latestOffset(start, ReadAllAvailable()) == start
