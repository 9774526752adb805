"""How to reach a cluster: plain values that travel to Spark's executors by pickle."""

from __future__ import annotations

from typing import NamedTuple


class TlsSettings(NamedTuple):
    """Certificates as PEM, in files or as text; without any, the authorities of the machine are trusted."""

    ca_file: str | None = None
    ca_text: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = None
    is_host_checked: bool = True
    certificate_text: str | None = None
    key_text: str | None = None

    def __repr__(self) -> str:
        """Without the key: settings end up in error messages and logs."""
        return f"TlsSettings(ca_file={self.ca_file!r}, certificate_file={self.certificate_file!r})"


class SaslSettings(NamedTuple):
    mechanism: str
    username: str
    password: str

    def __repr__(self) -> str:
        """Without the password: settings end up in error messages and logs."""
        return f"SaslSettings({self.mechanism}, {self.username})"


class ClientSettings(NamedTuple):
    bootstrap: tuple[str, ...]
    client_id: str = "tidemill-spark"
    request_timeout_ms: int = 30_000
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
