"""`tidemill doctor`: whether this machine lets a broker with many partitions work, and what to change."""

from __future__ import annotations

import typer

from tidemill.cli.connection import JsonOption
from tidemill.cli.errors import EXIT_FOUND_SOMETHING
from tidemill.cli.output import print_json, print_table
from tidemill.ports.machine import MachineCheck, machine_checks


def doctor(json: JsonOption = False) -> None:
    """Check the limits of this machine; exit code 1 if one should be changed."""
    checks = machine_checks()
    if json:
        print_json([check._asdict() for check in checks])
    else:
        print_table(("", "limit", "found", "wanted", "why"), [_row(check) for check in checks])
        for check in checks:
            if not check.is_good:
                print(f"to change {check.name}:  {check.remedy}")
    if not all(check.is_good for check in checks):
        raise typer.Exit(EXIT_FOUND_SOMETHING)


def _row(check: MachineCheck) -> tuple[object, ...]:
    return "ok" if check.is_good else "change", check.name, check.found, check.wanted, check.reason
