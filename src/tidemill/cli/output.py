"""What commands print: tables for people, JSON for programs. Results go to stdout, remarks to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import typer

from tidemill.cli.errors import CommandError


def print_json(value: Any) -> None:
    """Indented for a reader, in one line for a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, ensure_ascii=False, indent=indent))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Drawn on a terminal; in a pipe plain columns, with the heading, that `cut` and `awk` can take apart."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            print("\t".join(str(cell) for cell in row))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console().print(table)


def print_rows(columns: Sequence[str], rows: Sequence[NamedTuple], json: bool, nothing: str) -> None:
    """A list as JSON or as a table; `nothing` is the remark in place of an empty table."""
    if json:
        print_json([row._asdict() for row in rows])
    elif rows:
        print_table(columns, rows)
    else:
        remark(nothing)


def remark(text: str) -> None:
    print(text, file=sys.stderr)


def confirm_deletion(what: str, names: list[str], with_what: str, yes: bool) -> None:
    """Ask a person; a program must have said --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"deleting {what} cannot be undone: add --yes to do it without being asked")
    typer.confirm(f"Delete {', '.join(names)} and {with_what}?", abort=True)
