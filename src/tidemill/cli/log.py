"""`tidemill log ...`: look into the files of a log, offline; Kafka's directories too."""

from __future__ import annotations

import base64
import json as json_module
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from tidemill.cli.connection import JsonOption
from tidemill.cli.errors import EXIT_FOUND_SOMETHING, CommandError
from tidemill.cli.output import print_json, remark

app = typer.Typer(
    help="Look into the files of a log, without a broker.", no_args_is_help=True, rich_markup_mode=None
)

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="A data directory, a partition's directory, or one file.")
]


@app.command("dump")
def dump(
    path: PathArgument,
    records: Annotated[bool, typer.Option("--records", "-r", help="Records too, not only batches.")] = False,
    start_offset: Annotated[int, typer.Option("--from", min=0, help="First offset.")] = 0,
    end_offset: Annotated[int | None, typer.Option("--to", min=0, help="Offset to stop before.")] = None,
    json: JsonOption = False,
) -> None:
    """Print what is in a log: a line per batch, record or index entry."""
    from tidemill.storage import inspect

    with _readable():
        rows = inspect.dump(path, with_records=records, start_offset=start_offset, end_offset=end_offset)
        for row in rows:
            print(json_module.dumps(_plain(row), ensure_ascii=False) if json else _line(row))


@app.command("verify")
def verify(
    path: PathArgument,
    batches_only: Annotated[
        bool, typer.Option("--batches-only", help="Check batches, and do not decode their records: faster.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Look for damage; exit code 1 if there is any. No broker may be writing to it meanwhile."""
    from tidemill.storage import inspect

    with _readable():
        findings = list(inspect.verify(path, with_records=not batches_only))
        checked = len(inspect.partitions_in(path))
    if json:
        print_json([finding._asdict() | {"severity": finding.severity.name.lower()} for finding in findings])
    else:
        for finding in findings:
            print(finding)
    errors = sum(finding.severity is inspect.Severity.ERROR for finding in findings)
    remark(f"{checked} partitions checked: {errors} errors, {len(findings) - errors} notes and warnings")
    if errors:
        raise typer.Exit(EXIT_FOUND_SOMETHING)


@contextmanager
def _readable() -> Iterator[None]:
    from tidemill.model.errors import TidemillError

    try:
        yield
    except BrokenPipeError:
        raise  # of the reader of our output, not of the log
    except TidemillError as error:
        raise CommandError(
            f"{error}: give a data directory, a partition's directory or a file of one"
        ) from error
    except OSError as error:
        raise CommandError(f"cannot read {error.filename}: {error.strerror}") from error


def _line(row: dict[str, Any]) -> str:
    """`batch  position=0 size=120 ...`: the kind first, what is null left out."""
    indent = "  " if row["kind"] == "record" else ""
    fields = (
        f"{name}={_shown(value)}" for name, value in row.items() if name != "kind" and value is not None
    )
    return f"{indent}{row['kind']}  {' '.join(fields)}"


def _shown(value: Any) -> str:
    return (
        json_module.dumps(_plain(value), ensure_ascii=False)
        if isinstance(value, bytes | tuple)
        else str(value)
    )


def _plain(value: Any) -> Any:
    """Bytes as text where they are text, as base64 otherwise."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _plain(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    return value
