"""`tidemill consume`: print messages of a topic, from anywhere in it to its end, or on and on.

It assigns partitions to itself: no consumer group is joined and no offset committed, so looking changes nothing.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.connection import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    BootstrapOption,
    Connection,
    JsonOption,
    PropertyOption,
    TimeoutOption,
    TopicArgument,
)
from tidemill.cli.errors import CommandError
from tidemill.cli.message_text import Format, MessagePrinter
from tidemill.cli.reading import Beginning, Start, TopicReader

if TYPE_CHECKING:
    from confluent_kafka import Message


class Isolation(enum.StrEnum):
    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


def consume(
    topic: TopicArgument,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="[the default, unless --follow begins at the end]")
    ] = False,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", min=0, help="Begin at this offset of each partition.")
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Begin at 2026-01-31T12:00, at milliseconds, or 10m ago."),
    ] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="The last N messages.")] = None,
    partition: Annotated[list[int] | None, typer.Option("--partition", "-p", help="[all]")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end.")] = False,
    maximum: Annotated[int | None, typer.Option("--max", "-m", min=0, help="Stop after N messages.")] = None,
    format: Annotated[
        Format, typer.Option("--format", help="full adds key, headers, offset and time.")
    ] = Format.TEXT,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="Print KEY, this, VALUE.")
    ] = None,
    isolation: Annotated[Isolation, typer.Option("--isolation")] = Isolation.COMMITTED,
    json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_SECONDS,
    properties: PropertyOption = None,
) -> None:
    """Print messages of a topic."""
    start = _start(from_beginning, offset, from_time, tail, follow)
    printer = MessagePrinter(Format.JSON if json else format, key_separator)
    connection = Connection.of(bootstrap, timeout, properties)
    reader = TopicReader(connection, topic, partition or [], isolation.value)
    try:
        _print_all(reader.read(start, follow), printer, maximum)
    finally:
        reader.close()


def _start(
    from_beginning: bool, offset: int | None, from_time: str | None, tail: int | None, follow: bool
) -> Start:
    given = from_beginning + sum(choice is not None for choice in (offset, from_time, tail))
    if given > 1:
        raise CommandError("take one of --from-beginning, --offset, --from-time and --tail")
    if offset is not None:
        return Start(Beginning.OFFSET, offset)
    if from_time is not None:
        from tidemill.cli.times import parse_time_ms

        return Start(Beginning.TIME, parse_time_ms(from_time))
    if tail is not None:
        return Start(Beginning.TAIL, tail)
    return Start(Beginning.LAST if follow and not from_beginning else Beginning.FIRST)


def _print_all(batches: Iterator[list[Message]], printer: MessagePrinter, maximum: int | None) -> None:
    """Print and flush batch by batch: a pipe sees messages as they come, without a flush for each."""
    left = maximum
    if left == 0:
        return
    for batch in batches:
        chosen = batch if left is None else batch[:left]
        for message in chosen:
            sys.stdout.buffer.write(printer.line(message))
        sys.stdout.buffer.flush()
        if left is not None:
            left -= len(chosen)
            if left == 0:
                return
