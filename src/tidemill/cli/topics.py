"""`tidemill topics ...`: list, create, describe, alter, delete, add partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.connection import (
    Connection,
    JsonOption,
    TopicArgument,
    TopicsArgument,
    parse_pairs,
    with_connection,
)
from tidemill.cli.errors import CommandError
from tidemill.cli.output import confirm_deletion, print_json, print_rows, print_table
from tidemill.cli.topic_facts import TopicFacts, describe_topics, topic_summaries

if TYPE_CHECKING:
    from confluent_kafka.admin import ConfigResource

BROKER_DEFAULT = -1

app = typer.Typer(
    help="List, create, describe, change and delete topics.", no_args_is_help=True, rich_markup_mode=None
)

ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting of the topic; may be repeated."),
]


@app.command("list")
@with_connection
def list_topics(
    connection: Connection,
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
    json: JsonOption = False,
) -> None:
    """List all topics."""
    summaries = topic_summaries(connection, internal)
    nothing = "There are no topics yet; `tidemill topics create NAME` makes one."
    print_rows(("topic", "partitions", "replicas"), summaries, json, nothing)


@app.command("create")
@with_connection
def create_topics(
    connection: Connection,
    names: TopicsArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", help="[the broker's default]")
    ] = BROKER_DEFAULT,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", help="[the broker's default]")
    ] = BROKER_DEFAULT,
    config: ConfigOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="No error for one that exists.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Create topics."""
    configs = parse_pairs(config or [], "--config")
    admin = connection.admin()
    from confluent_kafka.admin import NewTopic

    new = [NewTopic(name, partitions, replication_factor, config=configs) for name in names]
    futures = admin.create_topics(new, operation_timeout=connection.timeout_seconds)
    outcome = {name: _created(connection, name, futures[name], if_not_exists) for name in names}
    _report(outcome, json)


@app.command("describe")
@with_connection
def describe(
    connection: Connection,
    names: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...")] = None,
    json: JsonOption = False,
) -> None:
    """Show partitions, leaders, offsets and settings that differ from the defaults."""
    wanted = names or [summary.topic for summary in topic_summaries(connection, internal=True)]
    facts = describe_topics(connection, wanted)
    if json:
        print_json([fact.as_json() for fact in facts])
        return
    for number, fact in enumerate(facts):
        if number:
            print()
        _print_topic(fact)


@app.command("alter")
@with_connection
def alter_topic(
    connection: Connection,
    name: TopicArgument,
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="May be repeated.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="KEY", help="Back to the default; may be repeated.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Change settings of a topic."""
    if not settings and not unset:
        raise CommandError("nothing to change: give --set KEY=VALUE or --unset KEY")
    resource = _changes(name, parse_pairs(settings or [], "--set"), unset or [])
    admin = connection.admin()
    futures = admin.incremental_alter_configs([resource])
    connection.result(futures[resource], f"topic {name}")
    _report({name: "changed"}, json)


@app.command("delete")
@with_connection
def delete_topics(
    connection: Connection,
    names: TopicsArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete topics with all their messages."""
    confirm_deletion("topics", names, "all their messages", yes)
    admin = connection.admin()
    futures = admin.delete_topics(names, operation_timeout=connection.timeout_seconds)
    for name in names:
        connection.result(futures[name], f"topic {name}")
    _report(dict.fromkeys(names, "deleted"), json)


@app.command("add-partitions")
@with_connection
def add_partitions(
    connection: Connection,
    name: TopicArgument,
    total: Annotated[int, typer.Option("--total", "-t", min=1, help="How many there shall be in all.")],
    json: JsonOption = False,
) -> None:
    """Give a topic more partitions; keys may move to other ones."""
    admin = connection.admin()
    from confluent_kafka.admin import NewPartitions

    futures = admin.create_partitions(
        [NewPartitions(name, total)], operation_timeout=connection.timeout_seconds
    )
    connection.result(futures[name], f"topic {name}")
    _report({name: f"has {total} partitions"}, json)


def _created(connection: Connection, name: str, future: Any, if_not_exists: bool) -> str:
    from confluent_kafka import KafkaError, KafkaException

    try:
        connection.result(future, f"topic {name}")
    except CommandError as error:
        cause = error.__cause__
        exists = isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
        if if_not_exists and exists:
            return "exists"
        raise
    return "created"


def _changes(name: str, settings: dict[str, str], unset: list[str]) -> ConfigResource:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    # The value of a deletion is not looked at, but librdkafka wants one.
    entries += [ConfigEntry(key, "", incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    return ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)


def _report(outcome: dict[str, str], json: bool) -> None:
    if json:
        print_json([{"topic": name, "outcome": text} for name, text in outcome.items()])
        return
    for name, text in outcome.items():
        print(f"topic {name} {text}")


def _print_topic(fact: TopicFacts) -> None:
    print(f"topic {fact.topic}  id {fact.topic_id}  partitions {len(fact.partitions)}")
    for key, value in fact.configs.items():
        print(f"  {key}={value}")
    columns = ("partition", "leader", "replicas", "in sync", "first offset", "next offset")
    print_table(columns, [partition.as_row() for partition in fact.partitions])
