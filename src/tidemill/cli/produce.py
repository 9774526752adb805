"""`tidemill produce`: send what comes from stdin or from files, a message per line."""

from __future__ import annotations

import dataclasses
import enum
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from tidemill.cli.connection import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    LARGEST_MESSAGE_BYTES,
    BootstrapOption,
    Connection,
    JsonOption,
    PropertyOption,
    TimeoutOption,
    TopicArgument,
    parse_pairs,
)
from tidemill.cli.errors import CommandError, refusal
from tidemill.cli.message_json import ANY_PARTITION, Headers, Outgoing, message_from_json
from tidemill.cli.output import print_json, remark

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

SHORTEST_DELIVERY_SECONDS = 30.0
PROGRESS_EVERY = 500
STDIN = "-"


class Acks(enum.StrEnum):
    ALL = "all"
    LEADER = "1"
    NONE = "0"


class Compression(enum.StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(
    topic: TopicArgument,
    files: Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="- is stdin.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of all messages.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="A line is KEY, this, VALUE.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="May be repeated.")
    ] = None,
    partition: Annotated[int, typer.Option("--partition", "-p", help="[by key]")] = ANY_PARTITION,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Each line is a message as `consume --json` prints it.")
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Each file is one message.")] = False,
    empty_is_null: Annotated[
        bool, typer.Option("--empty-is-null", help="Empty values are tombstones.")
    ] = False,
    acks: Annotated[
        Acks, typer.Option(help="Who must have it: all replicas in sync, the leader, nobody.")
    ] = Acks.ALL,
    compression: Annotated[Compression, typer.Option("--compression", "-z")] = Compression.NONE,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No remarks.")] = False,
    json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_SECONDS,
    properties: PropertyOption = None,
) -> None:
    """Send messages: one per line of stdin or of files."""
    if json_lines + whole + (key_separator is not None) > 1 or (key_separator == ""):
        raise CommandError("take one of --key-separator (not empty), --json-lines and --whole")
    connection = Connection.of(bootstrap, timeout, properties)
    common = Outgoing(None, _encoded(key), _headers(header or []), partition)
    shape = InputShape(common, key_separator, json_lines, whole, empty_is_null)
    if not files and sys.stdin.isatty() and not quiet:
        remark("One message per line; Ctrl-D ends.")
    sender = Sender(connection, topic, connection.producer(_producer_settings(acks, compression, timeout)))
    started = time.monotonic()
    with _progress(quiet or json) as progress:
        sender.send_all(shape.messages_of(files or [STDIN]), progress)
    sender.finish()
    if json:
        print_json(sender.report())
    elif not quiet:
        remark(f"sent {sender.delivered:,} messages to {topic} in {time.monotonic() - started:.2f} s")


@dataclasses.dataclass(frozen=True, slots=True)
class InputShape:
    """How bytes of stdin and files become messages."""

    common: Outgoing
    key_separator: str | None
    json_lines: bool
    whole: bool
    empty_is_null: bool

    def messages_of(self, paths: list[str]) -> Iterator[Outgoing]:
        for path in paths:
            with _opened(path) as stream:
                if self.whole:
                    yield self._message(stream.read(), self.common.key)
                    continue
                for number, line in enumerate(stream, 1):
                    yield self._from_line(line.rstrip(b"\r\n"), f"line {number} of {_name(path)}")

    def _from_line(self, line: bytes, where: str) -> Outgoing:
        if self.json_lines:
            return self._from_json(line, where)
        if self.key_separator is None:
            return self._message(line, self.common.key)
        key, separator, value = line.partition(self.key_separator.encode())
        if not separator:
            raise CommandError(f"{where} has no key separator {self.key_separator!r}")
        return self._message(value, key)

    def _from_json(self, line: bytes, where: str) -> Outgoing:
        try:
            message = message_from_json(line.decode())
        except (CommandError, UnicodeDecodeError) as error:
            raise CommandError(f"{where}: {error}") from error
        common = self.common
        return message._replace(
            key=common.key if message.key is None else message.key,
            headers=message.headers + common.headers,
            partition=message.partition if common.partition == ANY_PARTITION else common.partition,
        )

    def _message(self, value: bytes, key: bytes | None) -> Outgoing:
        return self.common._replace(value=None if self.empty_is_null and not value else value, key=key)


class Sender:
    """Sends with librdkafka and keeps account; the first failure ends it."""

    def __init__(self, connection: Connection, topic: str, producer: Producer) -> None:
        self._connection = connection
        self._topic = topic
        self._producer = producer
        self._error: KafkaError | None = None
        self._offsets: dict[int, tuple[int, int]] = {}
        self.delivered = 0

    def send_all(self, messages: Iterable[Outgoing], progress: Any) -> None:
        for number, message in enumerate(messages, 1):
            self._send(message)
            self._producer.poll(0)
            if self._error is not None:
                break
            if progress is not None and number % PROGRESS_EVERY == 0:
                progress.update(progress.task_ids[0], completed=number)

    def finish(self) -> None:
        """Wait until everything is delivered or has failed."""
        while self._error is None and self._producer.flush(0.2):
            pass
        if self._error is not None:
            self._producer.purge()
            raise refusal(self._error, f"topic {self._topic}", self._connection.bootstrap)

    def report(self) -> dict[str, Any]:
        partitions = [
            {"partition": partition, "first_offset": first, "last_offset": last}
            for partition, (first, last) in sorted(self._offsets.items())
        ]
        return {"topic": self._topic, "sent": self.delivered, "partitions": partitions}

    def _send(self, message: Outgoing) -> None:
        from confluent_kafka import KafkaException

        while self._error is None:
            try:
                self._producer.produce(
                    self._topic,
                    message.value,
                    message.key,
                    message.partition,
                    on_delivery=self._note,
                    timestamp=message.timestamp_ms,
                    headers=message.headers or None,
                )
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                self._error = error.args[0]

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._error = self._error or error
            return
        self.delivered += 1
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None and offset >= 0:
            first, last = self._offsets.get(partition, (offset, offset))
            self._offsets[partition] = min(first, offset), max(last, offset)


def _producer_settings(acks: Acks, compression: Compression, timeout_seconds: float) -> dict[str, Any]:
    return {
        "acks": acks.value,
        "enable.idempotence": acks is Acks.ALL,
        "compression.type": compression.value,
        "message.max.bytes": LARGEST_MESSAGE_BYTES,
        "message.timeout.ms": int(max(timeout_seconds, SHORTEST_DELIVERY_SECONDS) * 1000),
        "topic.metadata.propagation.max.ms": int(timeout_seconds * 1000),
    }


def _headers(texts: list[str]) -> Headers:
    return [(name, value.encode()) for name, value in parse_pairs(texts, "--header").items()]


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _opened(path: str) -> Any:
    if path == STDIN:
        stream: BinaryIO = sys.stdin.buffer
        return nullcontext(stream)
    try:
        return open(path, "rb")
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error


def _name(path: str) -> str:
    return "stdin" if path == STDIN else path


def _progress(hidden: bool) -> Any:
    """A running count on a terminal, when messages come from elsewhere."""
    if hidden or not sys.stderr.isatty() or sys.stdin.isatty():
        return nullcontext(None)
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,} messages"), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.add_task("", total=None)
    return progress
