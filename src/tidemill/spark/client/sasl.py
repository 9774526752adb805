"""SASL: PLAIN and SCRAM, as a client (RFC 4616, RFC 5802).

    client -> server   n,,n=user,r=<nonce>
    server -> client   r=<nonce><more>,s=<salt>,i=<iterations>
    client -> server   c=biws,r=<nonce><more>,p=<proof>
    server -> client   v=<signature>            the server proves that it knows the password, too

Each step travels in a SaslAuthenticate request after one SaslHandshake that names the mechanism.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from tidemill.spark.client.apis import APIS, Api
from tidemill.spark.client.settings import SaslSettings
from tidemill.spark.errors import BrokerUnavailable
from tidemill.wire.schema import STRING, Message, array, blob, int16, int64, string

if TYPE_CHECKING:
    from tidemill.spark.client.connection import Connection

FEWEST_ITERATIONS = 4096


class SaslHandshakeRequest(Message, versions=(0, 1)):
    mechanism: str = string()


class SaslHandshakeResponse(Message, versions=(0, 1)):
    error_code: int = int16()
    mechanisms: list[str] = array(STRING)


class SaslAuthenticateRequest(Message, versions=(0, 2), flexible=2):
    auth_bytes: bytes = blob()


class SaslAuthenticateResponse(Message, versions=(0, 2), flexible=2):
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    auth_bytes: bytes = blob()
    session_lifetime_ms: int = int64(since=1)


APIS[SaslHandshakeRequest] = Api(17, 1, SaslHandshakeResponse)
APIS[SaslAuthenticateRequest] = Api(36, 0, SaslAuthenticateResponse)


def authenticate(connection: Connection, sasl: SaslSettings) -> None:
    """Prove who we are on a fresh connection; raises BrokerUnavailable when the broker refuses."""
    answer = connection.call(SaslHandshakeRequest(mechanism=sasl.mechanism), 1)
    if answer.error_code:
        offered = ", ".join(answer.mechanisms)
        raise BrokerUnavailable(f"{connection.address} refuses SASL {sasl.mechanism}; it offers {offered}")
    if sasl.mechanism == "PLAIN":
        _exchange(connection, f"\0{sasl.username}\0{sasl.password}".encode())
        return
    conversation = Scram(sasl)
    first = _exchange(connection, conversation.first())
    conversation.finish(_exchange(connection, conversation.final(first)))


def _exchange(connection: Connection, message: bytes) -> bytes:
    answer = connection.call(SaslAuthenticateRequest(auth_bytes=message), 0)
    if answer.error_code:
        raise BrokerUnavailable(f"{connection.address} refuses the credentials: {answer.error_message}")
    received: bytes = answer.auth_bytes
    return received


class Scram:
    """The three steps of one SCRAM conversation."""

    def __init__(self, sasl: SaslSettings, nonce: str | None = None) -> None:
        self._hash = {"SCRAM-SHA-256": hashlib.sha256, "SCRAM-SHA-512": hashlib.sha512}[sasl.mechanism]
        self._name = sasl.username.replace("=", "=3D").replace(",", "=2C")
        self._password = sasl.password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._server_signature = b""

    @property
    def _bare(self) -> str:
        return f"n={self._name},r={self._nonce}"

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        fields = _fields(server_first)
        iterations = int(fields.get("i", "0"))
        if not fields.get("r", "").startswith(self._nonce) or iterations < FEWEST_ITERATIONS:
            raise BrokerUnavailable("the broker's SCRAM challenge is not for us")
        name = self._hash().name
        salted = hashlib.pbkdf2_hmac(name, self._password, base64.b64decode(fields["s"]), iterations)
        without_proof = f"c=biws,r={fields['r']}"
        signed = f"{self._bare},{server_first.decode()},{without_proof}".encode()
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(self._hash(client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def finish(self, server_final: bytes) -> None:
        signature = base64.b64decode(_fields(server_final).get("v", ""))
        if not hmac.compare_digest(signature, self._server_signature):
            raise BrokerUnavailable(
                "the broker does not know the password either: its SCRAM signature is wrong"
            )

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash().name).digest()


def _fields(message: bytes) -> dict[str, str]:
    return dict(part.split("=", 1) for part in message.decode().split(",") if "=" in part)
