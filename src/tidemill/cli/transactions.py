"""`tidemill transactions ...`: list, describe, and end those that hang."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli.connection import Connection, JsonOption, with_connection
from tidemill.cli.output import print_json, print_rows, print_table, remark
from tidemill.cli.times import parse_duration_ms
from tidemill.cli.transaction_facts import (
    OpenTransaction,
    TransactionFacts,
    TransactionSummary,
    abort_on_partition,
    describe_transaction,
    find_hanging,
    transaction_summaries,
)
from tidemill.cli.wire_connection import WireCluster

app = typer.Typer(
    help="List and describe transactions, and end those that hang.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
@with_connection
def list_transactions(
    connection: Connection,
    states: Annotated[
        list[str] | None,
        typer.Option("--state", "-s", metavar="STATE", help="Such as Ongoing; may be repeated."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List all transactional ids, and what their transactions are doing."""
    with WireCluster(connection) as cluster:
        summaries = transaction_summaries(cluster, states or ())
    nothing = "There are no transactions; a producer with a transactional id makes one."
    print_rows(TransactionSummary._fields, summaries, json, nothing)


@app.command("describe")
@with_connection
def describe(
    connection: Connection,
    ids: Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL_ID...")],
    json: JsonOption = False,
) -> None:
    """Show producer, state, age and partitions of transactions."""
    with WireCluster(connection) as cluster:
        facts = [describe_transaction(cluster, each) for each in ids]
    if json:
        print_json([fact.as_json() for fact in facts])
        return
    for fact in facts:
        _print_transaction(fact)


@app.command("abort-hanging")
@with_connection
def abort_hanging(
    connection: Connection,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="May be repeated. [all]")
    ] = None,
    longer_than: Annotated[
        str,
        typer.Option("--longer-than", metavar="TIME", help="Nothing came for so long, such as 15m or 30s."),
    ] = "15m",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it; without this it is only shown.")] = False,
    json: JsonOption = False,
) -> None:
    """Find transactions that no coordinator will ever end, and abort them; shows first what would be aborted."""
    longer_than_ms = parse_duration_ms(longer_than)
    with WireCluster(connection) as cluster:
        hanging = find_hanging(cluster, topics or [], longer_than_ms)
        for each in hanging if yes else ():
            abort_on_partition(cluster, each)
    if json:
        print_json([each._asdict() | {"outcome": "aborted" if yes else "found"} for each in hanging])
    elif hanging:
        print_table(OpenTransaction._fields, hanging)
    _remark_on(len(hanging), longer_than, yes)


def _remark_on(count: int, longer_than: str, yes: bool) -> None:
    if not count:
        remark(f"No transaction hangs for longer than {longer_than}.")
    elif yes:
        remark(f"{count} aborted.")
    else:
        remark("Nothing was changed; add --yes to abort them.")


def _print_transaction(fact: TransactionFacts) -> None:
    age = "" if fact.duration_ms is None else f"  open for {fact.duration_ms / 1000:.1f} s"
    print(
        f"transaction {fact.transactional_id}  state {fact.state}  producer {fact.producer_id}  "
        f"epoch {fact.producer_epoch}  time-out {fact.timeout_ms} ms  coordinator {fact.coordinator}{age}"
    )
    if fact.partitions:
        print_table(("topic", "partition"), fact.partitions)
