"""One connection with several requests under way, against a peer that answers in order; no broker is needed."""

from __future__ import annotations

import socket
import struct

from tidemill.spark.client.apis import API_VERSIONS_KEY, APIS
from tidemill.spark.client.connection import Connection
from tidemill.spark.client.settings import ClientSettings
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
