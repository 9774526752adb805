"""The command line as users run it: a process of its own, its exit code checked, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

Completed = subprocess.CompletedProcess[str]
Run = Callable[..., Completed]

PROGRAM = (sys.executable, "-m", "tidemill.cli.main")
RUN_SECONDS = 60


def run_program(
    *arguments: str, stdin: str | bytes = "", code: int = 0, bootstrap: str | None = None
) -> Completed:
    """Run `tidemill` to its end; what it prints comes back as text, bytes that are none as surrogates."""
    raw = stdin if isinstance(stdin, bytes) else stdin.encode()
    result = subprocess.run(
        [*PROGRAM, *arguments],
        input=raw,
        capture_output=True,
        env=environment(bootstrap),
        timeout=RUN_SECONDS,
    )
    output, errors = result.stdout.decode(errors="surrogateescape"), result.stderr.decode()
    assert "Traceback" not in errors, errors
    assert result.returncode == code, errors
    return subprocess.CompletedProcess(result.args, result.returncode, output, errors)


def environment(bootstrap: str | None) -> dict[str, str]:
    """Ours without the variables that the command line looks at, and with this address."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMILL_")}
    return inherited if bootstrap is None else inherited | {"TIDEMILL_BOOTSTRAP": bootstrap}
