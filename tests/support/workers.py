"""Client programs that fault tests start, stall, kill and start again, and the journals that they leave.

    worker = Worker("transactional_copier.py", bootstrap, "source", "target")
    worker.start(); worker.kill(); worker.start()        # a second life, same journal
    worker.journal()                                     # every line of all its lives, as JSON values

A program appends to the file that its first argument names, unbuffered and before whatever depends on it: what a
killed process wrote is there. Its second argument is the number of its life.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any, Self

HERE = Path(__file__).resolve().parent
END_SECONDS = 20.0


class Worker:
    def __init__(self, program: str, *arguments: str) -> None:
        self._program, self._arguments = HERE / program, arguments
        descriptor, name = tempfile.mkstemp(prefix="worker-", suffix=".jsonl")
        os.close(descriptor)
        self._path = Path(name)
        self._log_path = self._path.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._path.unlink(missing_ok=True)
        self._log_path.unlink(missing_ok=True)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.lives += 1
        command = [sys.executable, str(self._program), str(self._path), str(self.lives), *self._arguments]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(END_SECONDS)

    def signal(self, which: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(which)

    def output(self) -> str:
        """What all its lives printed."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def journal(self) -> list[Any]:
        """A line that a kill cut off, the last of a life, is left out."""
        lines = self._path.read_text().split("\n")
        return [
            json.loads(line)
            for line, following in itertools.pairwise(lines)
            if line and (following or _is_whole(line))
        ]


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


class Journal:
    """The worker's own side. An empty line begins each life: the one before may have been cut off in its last line."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(self._descriptor, b"\n")

    def write(self, *entry: object) -> None:
        os.write(self._descriptor, json.dumps(entry).encode() + b"\n")


class Stopping:
    """Whether somebody asked this program to end."""

    def __init__(self) -> None:
        self.is_asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True
