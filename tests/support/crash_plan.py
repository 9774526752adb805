"""Ends processes at named steps of the exactly-once sink and of the lake commit.

Both say when they reach a step: the sink to its log (`tidemill.spark.sink.steps`), the lake to a hook
(`tidemill.spark.lake.steps`). A `CrashPlan` is a folder with one empty file for each crash that is still to happen,
`<count>.<step>.<victim>`; whoever reaches the step first removes the file and acts:

    self      kill -9 of the process itself: a Python worker, or the process in which a batch is committed
    workers   kill -9 of every Python worker of the driver, at work or not
    broker    stay at this step until the test, which calls `kill_broker` over and over, has killed the broker
    pause     stay at this step, so that somebody else can kill the driver or overtake it, until `resume` exists

The count is the number of the batch for the sink, and for the lake how often this thread has reached the step.
`spark_python/sitecustomize.py` installs the plan that TIDEMILL_CRASH_PLAN names in every Python process of Spark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.testing import SubprocessBroker

PLAN_VARIABLE = "TIDEMILL_CRASH_PLAN"
PAUSE_SECONDS = 600.0
POLL_SECONDS = 0.01
VICTIMS = ("self", "workers", "broker", "pause")


class CrashPlan:
    """The folder, for the test that fills it and for the processes that carry it out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, count: int, step: str, victim: str) -> None:
        assert victim in VICTIMS, victim
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{count}.{step}.{victim}").touch()

    @property
    def pending(self) -> list[str]:
        """The crashes that have not happened, and the processes at a step where the broker is yet to die."""
        return sorted(path.name for name in ("*.*.*", "broker.*") for path in self.folder.glob(name))

    def environment(self) -> dict[str, str]:
        """For a driver whose Python processes carry this plan out."""
        from spark_sessions import spark_environment

        return {**os.environ, **spark_environment(), PLAN_VARIABLE: str(self.folder)}

    # -- for the test -----------------------------------------------------------------------------------------

    def kill_broker(self, broker: SubprocessBroker) -> None:
        """kill -9 of the broker, and a restart, for each process that has come to a step where it is to die.

        Here and not there: that process may itself be killed before it gets to it.
        """
        for waiting in self.folder.glob("broker.*"):
            broker.kill()
            waiting.unlink()
            broker.restart()

    def kill_driver(self) -> None:
        """kill -9 of the driver, of its JVM, and of whoever stands still at a step."""
        paused = [path.suffix[1:].partition("-")[0] for path in self.folder.glob("pause.*")]
        for pid in [*(self.folder / "driver.pids").read_text().split(), *paused]:
            _kill(int(pid))

    @property
    def is_paused(self) -> bool:
        return any(self.folder.glob("pause.*"))

    @property
    def is_broker_to_die(self) -> bool:
        return any(self.folder.glob("broker.*"))

    def resume(self) -> None:
        (self.folder / "resume").touch()

    # -- for the processes that die ---------------------------------------------------------------------------

    def name_driver(self, spark: Any) -> None:
        """The processes of this driver: Python, and the JVM of its session."""
        (self.folder / "driver.pids").write_text(f"{os.getpid()} {spark.sparkContext._gateway.proc.pid}")

    def install(self) -> None:
        from tidemill.spark.lake import steps

        logger = logging.getLogger("tidemill.spark.sink")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(_SinkSteps(self))
        steps.hook = _LakeSteps(self)

    def reached(self, count: int, step: str) -> None:
        for victim in VICTIMS:
            mine = self.folder / f"{victim}.{os.getpid()}-{threading.get_ident()}"
            with contextlib.suppress(FileNotFoundError):
                (self.folder / f"{count}.{step}.{victim}").rename(mine)
                getattr(self, f"_{victim}")(mine)

    def _self(self, mine: Path) -> None:
        _kill(os.getpid())

    def _workers(self, mine: Path) -> None:
        _, jvm = (self.folder / "driver.pids").read_text().split()
        for pid in python_workers(int(jvm)):
            _kill(pid)

    def _broker(self, mine: Path) -> None:
        _stay_while(mine.exists)

    def _pause(self, mine: Path) -> None:
        _stay_while(lambda: not (self.folder / "resume").exists())


class _SinkSteps(logging.Handler):
    def __init__(self, plan: CrashPlan) -> None:
        super().__init__(logging.DEBUG)
        self._plan = plan

    def emit(self, record: logging.LogRecord) -> None:
        self._plan.reached(getattr(record, "batch", -1), getattr(record, "step", ""))


class _LakeSteps(threading.local):
    """Spark runs the batches of a query in one thread, and those of another query in another."""

    def __init__(self, plan: CrashPlan) -> None:
        self._plan = plan
        self._seen: Counter[str] = Counter()

    def __call__(self, step: str) -> None:
        self._seen[step] += 1
        self._plan.reached(self._seen[step], step)


def install_from_environment() -> None:
    folder = os.environ.get(PLAN_VARIABLE)
    if folder:
        CrashPlan(Path(folder)).install()


def python_workers(jvm: int) -> list[int]:
    """Spark's Python workers are forks of its daemons, which are children of the JVM."""
    parents = {pid: parent for pid, parent in _processes() if _is_daemon(pid)}
    return [pid for pid, parent in parents.items() if parents.get(parent) == jvm]


def _processes() -> Iterator[tuple[int, int]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])


def _is_daemon(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _stay_while(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PAUSE_SECONDS
    while condition() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
