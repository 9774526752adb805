"""How commands reach a cluster: options that all of them share, and the clients made from them.

librdkafka (confluent-kafka) does the talking. It is imported when a command runs, not before: `--help` needs none
of it. A first look at the address with a plain socket tells at once, instead of after many silent retries, that
nobody is there.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.errors import CommandError, no_answer, refusal

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_SECONDS = 10.0
LARGEST_MESSAGE_BYTES = 100_000_000

BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="TIDEMILL_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Brokers to talk to first.",
    ),
]
PropertyOption = Annotated[
    list[str] | None,
    typer.Option("--property", "-X", metavar="KEY=VALUE", help="A setting of librdkafka; may be repeated."),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for an answer.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """Where the brokers are and how to talk to them; nothing is opened before a client is asked for."""

    bootstrap: str
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    properties: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, bootstrap: str, timeout_seconds: float, properties: list[str] | None) -> Connection:
        return cls(bootstrap, timeout_seconds, parse_pairs(properties or [], "--property"))

    def admin(self) -> AdminClient:
        """Keep it in a variable until its futures are done: with the client they go too."""
        self.check_reachable()
        from confluent_kafka.admin import AdminClient

        return AdminClient(self._settings(), logger=_silent_logger())

    def producer(self, settings: dict[str, Any]) -> Producer:
        self.check_reachable()
        from confluent_kafka import Producer

        return Producer(self._settings() | settings | self.properties, logger=_silent_logger())

    def consumer(self, settings: dict[str, Any]) -> Consumer:
        """For `assign()`: it joins no group and commits nothing (librdkafka wants a group name all the same)."""
        self.check_reachable()
        from confluent_kafka import Consumer

        fixed = {"group.id": "tidemill-cli", "enable.auto.commit": False, "enable.auto.offset.store": False}
        return Consumer(self._settings() | fixed | settings | self.properties, logger=_silent_logger())

    def result(self, future: Future[Any], subject: str) -> Any:
        """What an administration call answers, or the sentence that says why not."""
        from concurrent.futures import TimeoutError as FutureTimeout

        from confluent_kafka import KafkaException

        try:
            return future.result(self.timeout_seconds)
        except KafkaException as error:
            raise refusal(error.args[0], subject, self.bootstrap) from error
        except FutureTimeout as error:
            raise no_answer(self.bootstrap, f"nothing came within {self.timeout_seconds:g} s") from error

    def check_reachable(self) -> None:
        """Fail at once, with a sentence, when nobody listens at any of the addresses."""
        self.first_reachable()

    def first_reachable(self) -> str:
        """The first of the addresses at which somebody listens."""
        problem = "no address given"
        for address in self.bootstrap.split(","):
            host, port = _split_address(address.strip())
            try:
                socket.create_connection((host, port), timeout=self.timeout_seconds).close()
                return address.strip()
            except OSError as error:
                problem = (error.strerror or str(error) or type(error).__name__).lower()
        raise no_answer(self.bootstrap, problem)

    def _settings(self) -> dict[str, Any]:
        milliseconds = int(self.timeout_seconds * 1000)
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "tidemill-cli",
            "socket.connection.setup.timeout.ms": max(1_000, milliseconds),
            **self.properties,
        }


def with_connection(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that lead to a cluster; it takes the `connection` that is made from them.

        @app.command("list")
        @with_connection
        def list_topics(connection: Connection, json: JsonOption = False) -> None: ...

    becomes `list [--json] [--bootstrap HOST:PORT] [--timeout SECONDS] [--property KEY=VALUE]...`.
    """

    @functools.wraps(command)
    def connected(bootstrap: str, timeout: float, properties: list[str] | None, **arguments: object) -> None:
        command(connection=Connection.of(bootstrap, timeout, properties), **arguments)

    signature = inspect.signature(command, eval_str=True)
    own = [each for name, each in signature.parameters.items() if name != "connection"]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + _CONNECTION_PARAMETERS
    vars(connected)["__signature__"] = signature.replace(parameters=parameters)
    connected.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    return connected


_CONNECTION_PARAMETERS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option)
    for name, option, default in (
        ("bootstrap", BootstrapOption, DEFAULT_BOOTSTRAP),
        ("timeout", TimeoutOption, DEFAULT_TIMEOUT_SECONDS),
        ("properties", PropertyOption, None),
    )
]


def parse_pairs(texts: list[str], option: str) -> dict[str, str]:
    """`["a=b"]` to `{"a": "b"}`."""
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise CommandError(f"{option} {text!r} is not of the form KEY=VALUE")
        pairs[key.strip()] = value
    return pairs


def complete_topic(incomplete: str) -> list[str]:
    """Topic names for the shell; silence if there is no broker."""
    import os

    connection = Connection(os.environ.get("TIDEMILL_BOOTSTRAP", DEFAULT_BOOTSTRAP), timeout_seconds=1.0)
    try:
        topics = connection.admin().list_topics(timeout=1.0).topics
    except Exception:
        return []
    return sorted(name for name in topics if name.startswith(incomplete))


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)]
TopicsArgument = Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topic)]


def _split_address(address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        raise CommandError(f"--bootstrap {address!r} is not of the form HOST:PORT")
    return host.strip("[]"), int(port)


def _silent_logger() -> logging.Logger:
    """librdkafka reports each retry on stderr; what matters reaches the user as the command's own sentence."""
    logger = logging.getLogger("tidemill.cli.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
