"""A broker for a test: in a thread of this process, or as a process of its own.

    with EmbeddedBroker(settings={"auto.create.topics.enable": "false"}) as broker:
        topic = broker.create_topic("orders", partitions=3)
        ...                                  # any Kafka client at broker.bootstrap

    with SubprocessBroker() as broker:
        broker.kill()                        # kill -9, as a crash would
        broker.restart()                     # same address, same data: what was acknowledged is there

The embedded broker is up first (no interpreter to start) and can be debugged in place; the subprocess has its
own interpreter lock, so a busy test does not slow it, and it can be killed. Both listen on a free port of the
loopback interface, which they keep over a `restart`, and both remove their data on `stop`, unless the caller
gave the directory.

Limits: one node; Linux only, as the broker. A broker that was garbage collected without `stop` ends with its process.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tidemill.model.errors import ApiError, ErrorCode, TidemillError

START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 30.0
FREE_PORT = "127.0.0.1:0"


class BrokerDidNotStart(TidemillError):
    """The broker ended, or was silent for too long, before clients could connect."""


class TestBroker(abc.ABC):
    """What both kinds share: address, data directory, topics, and a life from `start` to `stop`."""

    __test__ = False
    """Not a test, whatever pytest makes of the name."""

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        settings: Mapping[str, str] | None = None,
        listen: str = FREE_PORT,
        advertise: str | None = None,
    ) -> None:
        self._owns_data = data_dir is None
        self.data_dir = str(data_dir) if data_dir is not None else ""
        self.settings = dict(settings or {})
        self.listen = listen
        self.advertise = advertise
        self.host = ""
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """What clients call `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        if not self.data_dir:
            self.data_dir = tempfile.mkdtemp(prefix="tidemill-")
        try:
            self._start()
        except BaseException:
            self._remove_data()
            raise
        self.listen = self.bootstrap

    def stop(self) -> None:
        """End in order and remove the data, if it is the broker's own; a stopped broker stays stopped."""
        try:
            self._stop()
        finally:
            self._remove_data()

    def restart(self) -> None:
        """Stop (if it runs) and start on the same data and the same port."""
        self._stop()
        self._start()

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic; its settings by keyword, with underscores for dots (`retention_ms="1000"`)."""
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        create_topic(self.bootstrap, name, partitions, dotted)
        return name

    @abc.abstractmethod
    def _start(self) -> None: ...

    @abc.abstractmethod
    def _stop(self) -> None: ...

    def _remove_data(self) -> None:
        if self._owns_data and self.data_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            self.data_dir = ""


class EmbeddedBroker(TestBroker):
    """A broker on an event loop of its own, in a daemon thread of this process."""

    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def _start(self) -> None:
        self._failure: BaseException | None = None
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidemill-broker", daemon=True)
        self._thread.start()
        if not self._is_up.wait(START_TIMEOUT_SECONDS):
            raise BrokerDidNotStart(f"not ready after {START_TIMEOUT_SECONDS:.0f} s")
        if self._failure is not None:
            self._thread.join()
            self._thread = None
            raise BrokerDidNotStart(str(self._failure)) from self._failure

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop ended by itself
            self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(STOP_TIMEOUT_SECONDS)
        self._loop = None
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        import uvloop

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # handed to the thread that waits
            self._failure = error
        finally:
            self._is_up.set()

    async def _serve(self) -> None:
        from tidemill.server.main import StartOptions, start_broker

        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        settings = [f"{key}={value}" for key, value in self.settings.items()]
        broker = await start_broker(
            StartOptions(
                data_dirs=[self.data_dir], listen=self.listen, advertise=self.advertise, settings=settings
            )
        )
        self.host, self.port = broker.host, broker.port
        self._is_up.set()
        try:
            await self._stopping.wait()
        finally:
            await broker.stop()


class SubprocessBroker(TestBroker):
    """`tidemill start` as a child process."""

    _process: subprocess.Popen[bytes] | None = None
    _log_path: Path | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_text(self) -> str:
        """What the broker wrote to standard error since its (latest) start."""
        return self._log_path.read_text(errors="replace") if self._log_path is not None else ""

    def kill(self) -> None:
        """`kill -9`: no goodbye, nothing flushed, nothing tidied."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def suspend(self) -> None:
        """SIGSTOP: the process is there and does nothing, until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wait(self, timeout_seconds: float) -> int:
        """The exit code of a broker that ends by itself."""
        assert self._process is not None
        return self._process.wait(timeout_seconds)

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "tidemill.cli", "start"]
        command += ["--data-dir", self.data_dir, "--listen", self.listen]
        if self.advertise is not None:
            command += ["--advertise", self.advertise]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return command

    def _start(self) -> None:
        if self._log_path is None:
            with tempfile.NamedTemporaryFile(prefix="tidemill-", suffix=".log", delete=False) as file:
                self._log_path = Path(file.name)
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        self._finalizer = weakref.finalize(self, _end_process, self._process)
        try:
            self.host, self.port = self._wait_until_ready()
        except BaseException:
            self.kill()
            self._remove_log()
            raise

    def _wait_until_ready(self) -> tuple[str, int]:
        assert self._process is not None and self._process.stdout is not None
        line = _read_line(self._process.stdout.fileno(), START_TIMEOUT_SECONDS)
        if not line.startswith("ready "):
            raise BrokerDidNotStart(f"said {line!r} instead of ready; its log:\n{self.log_text()}")
        host, port = line.removeprefix("ready ").strip().rsplit(":", 1)
        return host, int(port)

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        finally:
            self.kill()

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._remove_log()

    def _reap(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.wait()
        self._process.stdout.close()
        self._finalizer.detach()
        self._process = None

    def _remove_log(self) -> None:
        if self._log_path is not None:
            self._log_path.unlink(missing_ok=True)
            self._log_path = None


def _end_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _read_line(descriptor: int, timeout_seconds: float) -> str:
    """One line from a pipe, without reading beyond it; what came so far when the pipe or the time ends."""
    import os

    deadline = time.monotonic() + timeout_seconds
    line = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(0.0, deadline - time.monotonic())):
            byte = os.read(descriptor, 1)
            if not byte:
                break
            line += byte
    return line.decode(errors="replace")


def create_topic(bootstrap: str, name: str, partitions: int, configs: Mapping[str, str]) -> None:
    """Create a topic over the wire; raises ApiError as the broker says."""
    from tidemill.testing.wire_client import WireClient
    from tidemill.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=-1,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    with WireClient(bootstrap) as client:
        (result,) = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=15_000)).topics
    if result.error_code:
        raise ApiError(ErrorCode(result.error_code), result.error_message or "")
