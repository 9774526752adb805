"""`tidemill start`: a broker in this process, until Ctrl-C or SIGTERM."""

from __future__ import annotations

from typing import Annotated

import typer


def start(
    data_dir: Annotated[
        list[str] | None,
        typer.Option(
            "--data-dir", "-d", metavar="DIR", help="Where the data are kept; may be repeated. [data]"
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", "-l", metavar="HOST:PORT", help="[127.0.0.1:9092]")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="What clients connect to, if not --listen."),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", "-c", metavar="FILE", help="A server.properties as of Kafka.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE", help="One setting, before the file; may be repeated."
        ),
    ] = None,
) -> None:
    """Start a broker. It prints `ready HOST:PORT` when it serves."""
    from tidemill.server.main import StartOptions, run

    code = run(StartOptions(data_dir or [], listen, advertise, config, settings or []))
    raise typer.Exit(code)
