"""What a user wrote in `.option(...)`, read once, by name, before anything is connected.

Names are those of Spark's own Kafka connector and, as there, their case does not matter: `startingOffsets`
and `startingoffsets` are one option. What begins with `kafka.` is a setting of the client.

    options = Options({"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders", "minPartitions": "8"})
    options.whole_number("minPartitions", minimum=1)          # 8
    options.kafka.bootstrap                                   # ("127.0.0.1:9092",)

Nothing is passed over in silence. An option nobody knows, a value out of its range, a setting that would
break what the source or the sink promises: each raises `BadOption`, which names it and says what is
allowed.

Limits: settings of Java's client that have no meaning here (buffer sizes, poll intervals) are accepted
without effect, so that a query moves over as it is; they are listed in `WITHOUT_EFFECT`. Key stores of Java
(JKS, PKCS12) are not read: certificates are PEM, in files or as text.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tidemill.spark.client.settings import ClientSettings, SaslSettings, TlsSettings
from tidemill.spark.errors import BadOption

__all__ = ["PROTECTED", "WITHOUT_EFFECT", "BadOption", "Options"]

KAFKA_PREFIX = "kafka."

# setting -> why it may not be set, and what to do instead
PROTECTED = {
    "key.deserializer": "keys are delivered as bytes; use expressions of Spark to decode them",
    "value.deserializer": "values are delivered as bytes; use expressions of Spark to decode them",
    "key.serializer": "keys are written as bytes; use expressions of Spark to encode them",
    "value.serializer": "values are written as bytes; use expressions of Spark to encode them",
    "auto.offset.reset": "Spark keeps the offsets; set startingOffsets to earliest, latest or JSON instead",
    "enable.auto.commit": "Spark keeps the offsets; commitGroupId publishes them to a group instead",
    "interceptor.classes": "an interceptor could change what is read; there is no replacement",
}

USED = (
    "bootstrap.servers", "client.id", "fetch.max.wait.ms", "isolation.level", "max.partition.fetch.bytes",
    "request.timeout.ms", "sasl.jaas.config", "sasl.mechanism", "sasl.password", "sasl.username",
    "security.protocol", "ssl.ca.location", "ssl.certificate.location", "ssl.endpoint.identification.algorithm",
    "ssl.key.location", "ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key",
    "ssl.keystore.location", "ssl.keystore.type", "ssl.truststore.certificates", "ssl.truststore.location",
    "ssl.truststore.type",
)  # fmt: skip

WITHOUT_EFFECT = (
    "allow.auto.create.topics", "auto.commit.interval.ms", "check.crcs", "client.dns.lookup", "client.rack",
    "connections.max.idle.ms", "default.api.timeout.ms", "exclude.internal.topics", "fetch.error.backoff.ms",
    "fetch.max.bytes", "fetch.min.bytes", "group.id", "group.instance.id", "heartbeat.interval.ms",
    "max.poll.interval.ms", "max.poll.records", "metadata.max.age.ms", "metric.reporters", "metrics.num.samples",
    "metrics.recording.level", "metrics.sample.window.ms", "partition.assignment.strategy", "receive.buffer.bytes",
    "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retries", "retry.backoff.max.ms", "retry.backoff.ms",
    "send.buffer.bytes", "session.timeout.ms", "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms", "ssl.enabled.protocols", "ssl.protocol",
)  # fmt: skip

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
_DURATION_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_PEM = re.compile(r"(-----BEGIN [^-]+-----)([^-:]+)(-----END [^-]+-----)\s*")
_JAAS = re.compile(r"(\w+)\s*=\s*\"((?:[^\"\\]|\\.)*)\"")


class Options:
    """The options of one source or sink; every reading method names the option when it refuses a value."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in given.items() if not name.startswith("__")}
        self._names = {name.lower(): name for name in given}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def given(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that the user has set."""
        return [name for name in names if name in self]

    def check_known(self, known: Iterable[str], extra_kafka: Iterable[str] = ()) -> None:
        """Refuse every option that is neither among `known` nor a client setting (or one of `extra_kafka`)."""
        known = list(known)
        settings = {*USED, *WITHOUT_EFFECT, *(name.lower() for name in extra_kafka)}
        lowered = {name.lower() for name in known}
        for name in self._values:
            if name.startswith(KAFKA_PREFIX):
                self._check_setting(name[len(KAFKA_PREFIX) :], settings)
            elif name not in lowered:
                raise BadOption(self._names[name], "there is no such option", _nearest(name, known))

    def _check_setting(self, setting: str, settings: set[str]) -> None:
        if setting in PROTECTED and setting not in settings:
            raise BadOption(KAFKA_PREFIX + setting, "is not supported", PROTECTED[setting])
        if setting not in settings:
            near = _nearest(setting, sorted(settings), KAFKA_PREFIX)
            raise BadOption(KAFKA_PREFIX + setting, "there is no such setting", near)

    # -- values -------------------------------------------------------------------------------------------

    def text(self, name: str, default: str | None = None) -> str | None:
        value = self._values.get(name.lower())
        return default if value is None else value.strip()

    def required(self, name: str, allowed: str) -> str:
        value = self.text(name)
        if not value:
            raise BadOption(name, "must be set", allowed)
        return value

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """One of `allowed`, in whatever case it was written."""
        value = self.text(name, default) or ""
        for candidate in allowed:
            if candidate.lower() == value.lower():
                return candidate
        raise BadOption(name, f"is {value!r}", f"one of {', '.join(allowed)}")

    def boolean(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def whole_number(self, name: str, default: int | None = None, *, minimum: int = 0) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"[+-]?\d+", value) or int(value) < minimum:
            raise BadOption(name, f"is {value!r}", f"a whole number of at least {minimum}")
        return int(value)

    def number(self, name: str, default: int, *, minimum: int = 0) -> int:
        found = self.whole_number(name, default, minimum=minimum)
        return default if found is None else found

    def duration_ms(self, name: str, default_ms: int) -> int:
        """Milliseconds, or a number with a unit as Spark writes it: `15m`, `500ms`, `2 h`."""
        value = self.text(name)
        if value is None:
            return default_ms
        match = _DURATION.fullmatch(value.lower())
        if match is None or (match[2] or "ms") not in _DURATION_MS:
            raise BadOption(name, f"is {value!r}", "a number with one of the units us, ms, s, m, min, h, d")
        return int(int(match[1]) * _DURATION_MS[match[2] or "ms"])

    def words(self, name: str) -> list[str]:
        """Names with commas between them."""
        return [word.strip() for word in (self.text(name) or "").split(",") if word.strip()]

    def json(self, name: str, allowed: str) -> Any:
        value = self.text(name) or ""
        try:
            return json.loads(value)
        except ValueError:
            raise BadOption(name, f"is {value!r}, which is no JSON", allowed) from None

    # -- the client ---------------------------------------------------------------------------------------

    @property
    def kafka(self) -> ClientSettings:
        """How to reach the cluster, from the `kafka.` settings."""
        servers = self.required("kafka.bootstrap.servers", "HOST:PORT, several with commas between them")
        bootstrap = tuple(address.strip() for address in servers.split(",") if address.strip())
        for address in bootstrap:
            if not re.fullmatch(r"\[?[^\s/]+\]?:\d{1,5}", address):
                raise BadOption("kafka.bootstrap.servers", f"holds {address!r}", "HOST:PORT")
        protocol = self.choice("kafka.security.protocol", SECURITY_PROTOCOLS, "PLAINTEXT")
        return ClientSettings(
            bootstrap=bootstrap,
            client_id=self.text("kafka.client.id", "tidemill-spark") or "",
            request_timeout_ms=self.number("kafka.request.timeout.ms", 30_000, minimum=1),
            tls=self._tls() if protocol.endswith("SSL") else None,
            sasl=self._sasl() if protocol.startswith("SASL") else None,
        )

    @property
    def reads_committed(self) -> bool:
        return (
            self.choice("kafka.isolation.level", ISOLATION_LEVELS, ISOLATION_LEVELS[0]) == ISOLATION_LEVELS[1]
        )

    def _tls(self) -> TlsSettings:
        for kind in ("kafka.ssl.truststore.type", "kafka.ssl.keystore.type"):
            store = kind.replace(".type", ".location")
            if store in self and (self.text(kind, "JKS") or "").upper() != "PEM":
                raise BadOption(store, "is a key store of Java", f"a PEM file, with {kind} set to PEM")
        chain, key = self._client_certificate()
        verify = self.text("kafka.ssl.endpoint.identification.algorithm", "https")
        return TlsSettings(
            ca_file=self.text("kafka.ssl.ca.location") or self.text("kafka.ssl.truststore.location"),
            ca_text=_pem(self.text("kafka.ssl.truststore.certificates")),
            certificate_file=self.text("kafka.ssl.certificate.location")
            or self.text("kafka.ssl.keystore.location"),
            key_file=self.text("kafka.ssl.key.location"),
            key_password=self.text("kafka.ssl.key.password"),
            is_host_checked=verify not in ("", "none"),
            certificate_text=chain,
            key_text=key,
        )

    def _client_certificate(self) -> tuple[str | None, str | None]:
        """The chain of the client's certificate and its key, where they are given as text; both or none."""
        key, chain = "kafka.ssl.keystore.key", "kafka.ssl.keystore.certificate.chain"
        given = self.given((key, chain))
        if len(given) == 1:
            raise BadOption(given[0], "is not enough", f"{key} and {chain}, both as PEM")
        for other in self.given(("kafka.ssl.keystore.location", "kafka.ssl.certificate.location")):
            if given:
                raise BadOption(
                    other, f"is set beside {key}", "the certificate in a file or as text, not both"
                )
        return _pem(self.text(chain)), _pem(self.text(key))

    def _sasl(self) -> SaslSettings:
        mechanism = self.choice("kafka.sasl.mechanism", SASL_MECHANISMS, "PLAIN")
        jaas = dict(_JAAS.findall(self.text("kafka.sasl.jaas.config") or ""))
        user = self.text("kafka.sasl.username") or jaas.get("username")
        password = self.text("kafka.sasl.password") or jaas.get("password")
        if not user or password is None:
            allowed = "together with kafka.sasl.password, or both in kafka.sasl.jaas.config"
            raise BadOption("kafka.sasl.username", "must be set", allowed)
        return SaslSettings(mechanism, user, password)


def _pem(text: str | None) -> str | None:
    """PEM with its line breaks, which do not outlive every way that an option takes."""
    if text is None:
        return None
    return _PEM.sub(lambda part: "\n".join([part[1], *part[2].split(), part[3], ""]), text)


def _nearest(name: str, known: list[str], prefix: str = "") -> str:
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.6)
    shown = [prefix + by_lower[candidate] for candidate in near] or [prefix + each for each in known]
    return f"{'did you mean ' if near else 'there are '}{', '.join(shown)}"
