"""All commands, joined into one application; `main` does not come here for `start`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidemill.cli.consume import consume
from tidemill.cli.doctor import doctor
from tidemill.cli.groups import app as group_commands
from tidemill.cli.log import app as log_commands
from tidemill.cli.pipeline import app as pipeline_commands
from tidemill.cli.produce import produce
from tidemill.cli.start import parser
from tidemill.cli.topics import app as topic_commands
from tidemill.cli.transactions import app as transaction_commands

app = typer.Typer(
    name="tidemill",
    help="A message queue that any Kafka client can talk to.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(topic_commands, name="topics")
app.command()(produce)
app.command()(consume)
app.add_typer(group_commands, name="groups")
app.add_typer(transaction_commands, name="transactions")
app.add_typer(log_commands, name="log")
app.add_typer(pipeline_commands, name="pipeline")
app.command()(doctor)


def _start_option(name: str) -> Any:
    """One of the options that `start` reads by itself, as the help and the shell's completion want it."""
    (action,) = (action for action in parser()._actions if action.dest == name)
    return typer.Option(*action.option_strings, help=action.help, metavar=str(action.metavar))


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"tidemill {version('tidemill')}")
        raise typer.Exit


@app.command()
def start(
    data_dir: Annotated[list[str] | None, _start_option("data_dir")] = None,
    listen: Annotated[str | None, _start_option("listen")] = None,
    advertise: Annotated[str | None, _start_option("advertise")] = None,
    config: Annotated[str | None, _start_option("config")] = None,
    settings: Annotated[list[str] | None, _start_option("settings")] = None,
) -> None:
    """Start a broker."""
    from tidemill.server.main import StartOptions, run

    raise typer.Exit(run(StartOptions(data_dir or [], listen, advertise, config, settings or [])))


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A message queue that any Kafka client can talk to."""
