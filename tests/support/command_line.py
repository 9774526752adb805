"""The command line as users run it, its exit code checked, and never a traceback.

`run_program` calls it in this process, with streams of its own: a process for each of some hundred commands would
take minutes. Tests that stop, follow or pipe a command start `PROGRAM` as a process.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from unittest import mock

from tidemill.cli.main import main

Completed = subprocess.CompletedProcess[str]
Run = Callable[..., Completed]

PROGRAM = (sys.executable, "-m", "tidemill.cli.main")


def run_program(
    *arguments: str, stdin: str | bytes = "", code: int = 0, bootstrap: str | None = None
) -> Completed:
    """Run `tidemill` to its end; what it prints comes back as text, bytes that are none as surrogates."""
    raw = stdin if isinstance(stdin, bytes) else stdin.encode()
    source, output, errors = (io.TextIOWrapper(io.BytesIO(data), "utf-8") for data in (raw, b"", b""))
    with (
        mock.patch.multiple(sys, argv=["tidemill", *arguments], stdin=source, stdout=output, stderr=errors),
        mock.patch.dict(os.environ, environment(bootstrap), clear=True),
    ):
        returned = _exit_code()
    printed, complained = _text(output), _text(errors)
    assert "Traceback" not in complained, complained
    assert returned == code, complained
    return subprocess.CompletedProcess(list(arguments), returned, printed, complained)


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode(errors="surrogateescape")


def environment(bootstrap: str | None) -> dict[str, str]:
    """Ours without the variables that the command line looks at, and with this address."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMILL_")}
    return inherited if bootstrap is None else inherited | {"TIDEMILL_BOOTSTRAP": bootstrap}
