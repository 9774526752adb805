"""`tidemill groups ...`: list, describe, reset offsets, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tidemill.cli.connection import (
    Connection,
    JsonOption,
    with_connection,
)
from tidemill.cli.errors import CommandError
from tidemill.cli.group_facts import (
    GroupFacts,
    PartitionFacts,
    SharePartitionFacts,
    describe_group,
    group_summaries,
)
from tidemill.cli.group_reset import Goal, Move, Target, carry_out, plan
from tidemill.cli.output import confirm_deletion, print_json, print_rows, print_table, remark
from tidemill.cli.share_group_facts import SHARE, describe_share_group, share_group_summaries
from tidemill.cli.times import parse_time_ms

app = typer.Typer(
    help="List, describe and delete groups, and move their offsets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP")]
GroupsArgument = Annotated[list[str], typer.Argument(metavar="GROUP...")]


@app.command("list")
@with_connection
def list_groups(
    connection: Connection,
    json: JsonOption = False,
) -> None:
    """List all groups."""
    summaries = sorted({*group_summaries(connection), *share_group_summaries(connection)})
    nothing = "There are no groups yet; a consumer with a group name makes one."
    print_rows(("group", "state", "type"), summaries, json, nothing)


@app.command("describe")
@with_connection
def describe(
    connection: Connection,
    names: GroupsArgument,
    json: JsonOption = False,
) -> None:
    """Show members, who reads what, and how far behind each partition is."""
    facts = [describe_share_group(connection, name) or describe_group(connection, name) for name in names]
    if json:
        print_json([fact.as_json() for fact in facts])
        return
    for number, fact in enumerate(facts):
        if number:
            print()
        _print_group(fact)


@app.command("reset-offsets")
@with_connection
def reset_offsets(
    connection: Connection,
    name: GroupArgument,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:PARTITION]", help="May be repeated. [all that are committed]"
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first message.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", help="To this offset.")] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="WHEN", help="2026-01-31T12:00, or how long ago, such as 10m."),
    ] = None,
    shift: Annotated[int | None, typer.Option("--shift", help="By so many, back if negative.")] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without this it is only shown.")] = False,
    json: JsonOption = False,
) -> None:
    """Move the committed offsets of a group without members; shows first what would change."""
    goal = _goal(to_earliest, to_latest, to_offset, to_time, shift)
    moves = plan(connection, name, topics or [], goal)
    if execute:
        carry_out(connection, name, moves)
    if json:
        print_json([move._asdict() for move in moves])
    else:
        _print_moves(moves)
    if not execute:
        remark("Nothing was changed; add --execute to do it.")


@app.command("delete")
@with_connection
def delete_groups(
    connection: Connection,
    names: GroupsArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete groups without members, with their offsets."""
    confirm_deletion("groups", names, "their offsets", yes)
    admin = connection.admin()
    futures = admin.delete_consumer_groups(names)
    for name in names:
        connection.result(futures[name], f"group {name}")
    if json:
        print_json([{"group": name, "outcome": "deleted"} for name in names])
        return
    for name in names:
        print(f"group {name} deleted")


def _goal(
    to_earliest: bool, to_latest: bool, to_offset: int | None, to_time: str | None, shift: int | None
) -> Goal:
    goals = [
        *([Goal(Target.EARLIEST)] if to_earliest else []),
        *([Goal(Target.LATEST)] if to_latest else []),
        *([Goal(Target.OFFSET, to_offset)] if to_offset is not None else []),
        *([Goal(Target.TIME, parse_time_ms(to_time))] if to_time is not None else []),
        *([Goal(Target.SHIFT, shift)] if shift is not None else []),
    ]
    if len(goals) != 1:
        raise CommandError("say where to: one of --to-earliest, --to-latest, --to-offset, --to-time, --shift")
    return goals[0]


def _print_moves(moves: list[Move]) -> None:
    rows = [
        (move.topic, move.partition, "-" if move.committed is None else move.committed, move.new)
        for move in moves
    ]
    print_table(("topic", "partition", "committed", "new"), rows)


def _print_group(fact: GroupFacts) -> None:
    is_share = fact.type == SHARE
    kind = "share group" if is_share else "group"
    fields = SharePartitionFacts._fields if is_share else PartitionFacts._fields
    assignor = f"  assignor {fact.assignor}" if fact.assignor else ""
    lag = sum(partition.lag or 0 for partition in fact.partitions)
    print(f"{kind} {fact.group}  state {fact.state}{assignor}  members {len(fact.members)}  lag {lag}")
    print_table(fields, [*map(_cells, fact.partitions), *_idle_rows(fact)])


def _cells(row: Sequence[object]) -> list[object]:
    return ["-" if cell is None or cell == "" else cell for cell in row]


def _idle_rows(fact: GroupFacts) -> list[list[object]]:
    """Members that read nothing now: whoever looks for a consumer that stands idle looks here."""
    idle = [member for member in fact.members if not member["partitions"]]
    if fact.type == SHARE:
        return [_cells((None, None, None, None, member["member"])) for member in idle]
    return [
        _cells((None, None, None, None, None, member["member"], member["client"], member["host"]))
        for member in idle
    ]
