"""`tidemill`: the command line. One module per family of commands; this one joins them and catches what fails.

    tidemill start --data-dir data            a broker on 127.0.0.1:9092
    echo hello | tidemill produce greetings   from another terminal
    tidemill consume greetings

Exit codes: 0 done; 1 the command worked and found something wrong (doctor, log verify); 2 wrong usage, nobody
answers, or the broker refused; 130 interrupted. Set TIDEMILL_DEBUG=1 to see where an error comes from.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from tidemill.cli.consume import consume
from tidemill.cli.doctor import doctor
from tidemill.cli.errors import EXIT_REFUSED, CommandError
from tidemill.cli.groups import app as group_commands
from tidemill.cli.log import app as log_commands
from tidemill.cli.produce import produce
from tidemill.cli.start import start
from tidemill.cli.topics import app as topic_commands

EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="tidemill",
    help="A message queue that any Kafka client can talk to.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(start)
app.add_typer(topic_commands, name="topics")
app.command()(produce)
app.command()(consume)
app.add_typer(group_commands, name="groups")
app.add_typer(log_commands, name="log")
app.command()(doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"tidemill {version('tidemill')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A message queue that any Kafka client can talk to."""


def main() -> NoReturn:
    try:
        app(prog_name="tidemill")
    except CommandError as error:
        _end(str(error), EXIT_REFUSED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        if os.environ.get("TIDEMILL_DEBUG"):
            raise
        _end(f"{error} (TIDEMILL_DEBUG=1 shows where this comes from)", EXIT_REFUSED)
    sys.exit(0)


def _end(sentence: str, code: int) -> NoReturn:
    print(f"tidemill: {sentence}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
