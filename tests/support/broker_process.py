"""A broker as a process of its own: start, wait until it is ready, stop, and what it costs.

`BrokerProcess` is the one interface that tests and benchmarks use for every kind of broker (`KafkaPeer` in
`kafka_peer.py`, `TidemillPeer` in `tidemill_peer.py`):

    with KafkaPeer() as broker:             # temporary data directory, free port, removed at the end
        client = Producer({"bootstrap.servers": broker.bootstrap})
        broker.stop(); broker.start()       # the same data directory and the same port
        broker.cpu_seconds, broker.resident_bytes

Readings come from /proc and count the process with all its children. Only Linux is supported. A broker is
always ended by its process id; its output goes to `broker.log_path`, and the tail of it is part of every
error raised here.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
POLL_SECONDS = 0.002


class BrokerProcess:
    """What every kind of broker shares. A subclass says how to prepare, which command to run and when it is ready."""

    name = "broker"
    start_seconds = 30.0
    stop_seconds = 30.0

    def __init__(
        self,
        data_directory: Path | str | None = None,
        settings: dict[str, object] | None = None,
        port: int | None = None,
    ) -> None:
        """`settings` are broker settings by Kafka's names; without `data_directory` a temporary one is made."""
        self._scratch = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self.data_directory = Path(data_directory) if data_directory else self._scratch / "data"
        self.settings = dict(settings or {})
        self.port = port or free_port()
        self.log_path = self._scratch / "broker.log"
        self.started_at = 0.0  # time.monotonic() just before the process was created
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def prepare(self) -> None:
        """Make the data directory ready for a first start; called before every start."""
        self.data_directory.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_ready(self, output: str) -> bool:
        """Whether clients may connect, judged by what the process has written since it was started."""
        raise NotImplementedError

    def launch(self) -> None:
        """Create the process and return at once."""
        assert not self.running, f"{self.name} is already running"
        self.prepare()
        command = self.command()
        with self.log_path.open("ab") as log:
            self._log_offset = log.seek(0, os.SEEK_END)
            self.started_at = time.monotonic()
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait_ready(self) -> float:
        """Seconds from the creation of the process until clients may connect."""
        deadline = self.started_at + self.start_seconds
        while not self.is_ready(self.output()):
            if not self.running:
                raise RuntimeError(f"{self.name} ended while starting\n{self.tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"{self.name} was not ready in {self.start_seconds} s\n{self.tail()}")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - self.started_at

    def start(self) -> float:
        """Launch and wait; the seconds it took."""
        self.launch()
        return self.wait_ready()

    def stop(self) -> float:
        """Ask the process to stop and wait for its end; the seconds it took. Killed when it takes too long."""
        began = time.monotonic()
        if self.running:
            os.kill(self.pid, signal.SIGTERM)
            try:
                self._wait_ended(self.stop_seconds)
            except subprocess.TimeoutExpired:
                self.kill()
                raise TimeoutError(
                    f"{self.name} did not stop in {self.stop_seconds} s\n{self.tail()}"
                ) from None
        return time.monotonic() - began

    def kill(self) -> None:
        """The end without warning: SIGKILL."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            self._wait_ended(10.0)

    def _wait_ended(self, seconds: float) -> None:
        assert self._process is not None
        self._process.wait(seconds)

    def close(self) -> None:
        """Stop the process and remove every temporary file."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def output(self) -> str:
        """What the process has written since its last start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_offset)
            return log.read().decode(errors="replace")

    def tail(self, characters: int = 3000) -> str:
        return self.output()[-characters:]

    @property
    def cpu_seconds(self) -> float:
        """User and system time of the process, of its living children and of those it has waited for."""
        return sum(_cpu_seconds(pid) for pid in process_tree(self.pid))

    @property
    def resident_bytes(self) -> int:
        return sum(_resident_bytes(pid) for pid in process_tree(self.pid))

    @property
    def open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def process_tree(pid: int) -> list[int]:
    """`pid` and all its living descendants."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in children.read_text().split())
            except OSError:
                continue  # the thread ended between the listing and the reading
    return found


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # The fields after the command's name begin at number 3; 14 to 17 are utime, stime, cutime, cstime.
    return sum(int(field) for field in fields[11:15]) / CLOCK_TICKS_PER_SECOND


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0
