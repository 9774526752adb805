"""One connection with several requests under way, against a peer that answers in order; no broker is needed."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from tls_proxy import TlsProxy

from tidemill.spark.client.apis import API_VERSIONS_KEY, APIS
from tidemill.spark.client.connection import Connection, _tls_context
from tidemill.spark.client.settings import ClientSettings, TlsSettings
from tidemill.spark.errors import BrokerUnavailable
from tidemill.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidemill.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.messages.produce import ProduceRequest, ProduceResponse
from tidemill.wire.schema import Message, encode_into

SETTINGS = ClientSettings(("127.0.0.1:1",))
VERSIONS = [
    ApiVersion(api_key=api.key, min_version=api.newest, max_version=api.newest) for api in APIS.values()
]


class Answered(Connection):
    """A connection whose peer answers each request in turn; the throttle time of a produce counts its requests."""

    def _open(self) -> socket.socket:
        self.sent: list[tuple[int, int, int]] = []
        self.other_end: socket.socket
        mine, self.other_end = socket.socketpair()
        return mine

    def send_frame(self, frame: bytes | bytearray) -> None:
        self.sent.append(struct.unpack_from(">hhi", frame, 4))

    def receive_frame(self) -> memoryview:
        key, version, correlation_id = self.sent.pop(0)
        answer: Message
        if key == API_VERSIONS_KEY:
            answer = ApiVersionsResponse(api_keys=VERSIONS)
        elif key == APIS[ProduceRequest].key:
            answer = ProduceResponse(throttle_time_ms=correlation_id)
        else:
            answer = MetadataResponse(cluster_id=f"asked as {correlation_id}")
        out = bytearray(struct.pack(">i", correlation_id))
        if key != API_VERSIONS_KEY:
            out.append(0)
        encode_into(out, answer, version)
        return memoryview(out)


def test_a_call_takes_its_own_answer_while_others_are_under_way() -> None:
    connection = Answered("127.0.0.1:1", SETTINGS)
    connection.send(ProduceRequest(acks=-1))
    connection.send(ProduceRequest(acks=-1))
    assert connection.call(MetadataRequest(topics=None)).cluster_id == "asked as 4"
    connection.send(ProduceRequest(acks=-1))
    assert connection.call(MetadataRequest(topics=None)).cluster_id == "asked as 6"
    answers = []
    while connection.is_waiting:
        answers.append(connection.receive().throttle_time_ms)
    assert answers == [2, 3, 5]
    connection.other_end.close()
    connection.close()


LARGE = struct.pack(">i", 3_000_000) + bytes(range(250)) * 12_000


class Dribbled(Answered):
    """Its peer sends these bytes in pieces of any size, and goes away."""

    def receive_frame(self) -> memoryview:
        return super().receive_frame() if self.sent else Connection.receive_frame(self)

    def let_come(self, data: bytes) -> None:
        def send() -> None:
            for start in range(0, len(data), 70_001):
                self.other_end.sendall(data[start : start + 70_001])
            self.other_end.close()

        threading.Thread(target=send, daemon=True).start()

    def _open(self) -> socket.socket:
        self.sent = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            mine = socket.create_connection(server.getsockname())
            self.other_end = server.accept()[0]
        mine.settimeout(20)
        return mine


def test_large_answers_come_whole_in_whatever_pieces() -> None:
    connection = Dribbled("127.0.0.1:1", SETTINGS)
    connection.let_come(LARGE + LARGE + struct.pack(">i", 5) + b"small")
    assert connection.receive_frame() == LARGE[4:]
    assert connection.receive_frame() == LARGE[4:]
    assert bytes(connection.receive_frame()) == b"small"
    connection.close()


def test_a_peer_that_goes_away_in_the_middle_of_a_large_answer_is_noticed_at_once() -> None:
    connection = Dribbled("127.0.0.1:1", SETTINGS)
    connection.let_come(LARGE[:-1])
    with pytest.raises(BrokerUnavailable, match="it closed the connection"):
        connection.receive_frame()


def test_a_client_certificate_of_text_is_shown(tmp_path: Path) -> None:
    """The peer asks for a certificate of the authority it trusts, which here is the certificate itself."""
    proxy = TlsProxy(tmp_path, "127.0.0.1:1")
    texts = [(tmp_path / name).read_text() for name in ("certificate.pem", "key.pem")]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(proxy.certificate, tmp_path / "key.pem")
    context.load_verify_locations(proxy.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    shown = _tls_context(TlsSettings(ca_text=texts[0], certificate_text=texts[0], key_text=texts[1]))
    mine, other = socket.socketpair()
    seen: list[object] = []

    def serve() -> None:
        with context.wrap_socket(other, server_side=True) as peer:
            seen.append(peer.getpeercert())

    thread = threading.Thread(target=serve)
    thread.start()
    with shown.wrap_socket(mine, server_hostname="127.0.0.1"):
        thread.join(timeout=10)
    assert seen[0]


def test_a_connection_that_cannot_be_secured_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    connect = socket.create_connection

    def remember(*arguments: Any) -> socket.socket:
        made.append(connect(*arguments))
        return made[0]

    monkeypatch.setattr(socket, "create_connection", remember)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BrokerUnavailable, match="no connection"):
            Connection(address, ClientSettings((address,), tls=TlsSettings(ca_file="/no/such/file")))
    assert made[0].fileno() == -1
