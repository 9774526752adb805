"""Client processes from the harness's side: start one, wait until it is warm, let it go, take its result.

    with Client("ping", peer, groups=[[("t", 1)]], count=1000, size=100) as client:
        client.go()
        result = client.result()

`run(...)` does the three in one call. A client that dies or says nothing in time raises with what it wrote.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Any, Self

from bench.peers import ROOT, BrokerProcess


class Client:
    """One client process; it is warm and waiting when the constructor returns."""

    def __init__(self, role: str, peer: BrokerProcess, **job: Any) -> None:
        job = {"settings": {}, **job, "role": role, "bootstrap": peer.bootstrap}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close)
        self._role = role
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.client", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
        )
        if self._line() != "ready":
            self._fail("was not ready")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        line = self._line()
        if not line.startswith("{"):
            self._fail("gave no result")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _fail(self, what: str) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        raise RuntimeError(f"the client ({self._role}) {what}:\n{self._errors.read()[-2000:]}")

    def close(self) -> None:
        if self._process.poll() is None:
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self.close()


def run(role: str, peer: BrokerProcess, **job: Any) -> dict[str, Any]:
    """A whole job, with the broker's processor time for it as `cpu_seconds`."""
    with Client(role, peer, **job) as client:
        before = peer.cpu_seconds
        client.go()
        return {**client.result(), "cpu_seconds": peer.cpu_seconds - before}
