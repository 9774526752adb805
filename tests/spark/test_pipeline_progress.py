"""What people see of a pipeline: bars on a terminal, lines elsewhere, for streams and for jobs that are one batch."""

from __future__ import annotations

import io
import re
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tidemill.spark.pipeline.commands import _display
from tidemill.spark.pipeline.progress import BarDisplay, LineDisplay, TaskWatch
from tidemill.spark.pipeline.state import QueryFacts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS = 6
FACTS = QueryFacts(12, 13, 650_000, 650_000, 3, 26_300.4, 1_900, 150_000)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def last_line(self) -> str:
        """What stands there in the end."""
        return ESCAPES.sub("", self.getvalue()).strip().splitlines()[-1].rpartition("\r")[2]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in (("TERM", "xterm"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)
    return Terminal()


def take_a_moment(_: int) -> None:
    time.sleep(0.1)


def test_the_bar_of_one_batch_fills_with_its_tasks(spark: SparkSession, terminal: Terminal) -> None:
    """Two at a time; the job ends between two looks."""
    display = BarDisplay("orders-again", terminal)
    with TaskWatch(spark, display, interval_seconds=0.15):
        spark.sparkContext.parallelize(range(TASKS), TASKS).foreach(take_a_moment)
    display.close()
    shown = [int(done) for done in re.findall(r"(\d) of 6 tasks", terminal.getvalue())]
    assert shown == sorted(shown)
    assert shown[0] < TASKS
    title, bar, text = re.split(r"\s+", terminal.last_line(), maxsplit=2)
    assert (title, set(bar), text.strip()) == ("orders-again", {"━"}, "6 of 6 tasks")


def test_a_job_that_fails_is_not_waited_for(spark: SparkSession) -> None:
    out = io.StringIO()
    with (
        pytest.raises(RuntimeError, match="stop"),
        TaskWatch(spark, LineDisplay("orders-again", out), interval_seconds=0.05),
    ):
        began = time.monotonic()
        raise RuntimeError("stop")
    assert time.monotonic() - began < 0.5
    assert out.getvalue() == ""


def test_the_bar_of_a_stream_is_full_when_nothing_is_behind(terminal: Terminal) -> None:
    display = BarDisplay("orders", terminal)
    display.batch("archive", FACTS)
    display.close()
    half = terminal.last_line()
    assert half.endswith("batch 12, 650,000 messages so far, 1.9 s (26,300/s), 150,000 behind, 3 bad")
    full, _, empty = half.split()[1].partition("╺")
    assert 0.75 < len(full) / len(full + empty) < 0.87
    lines = io.StringIO()
    LineDisplay("orders", lines).batch("archive", FACTS)
    LineDisplay("orders", lines).tasks(1, 8)
    assert lines.getvalue().splitlines() == [
        "orders archive: batch 12, 650,000 messages so far, 1.9 s (26,300/s), 150,000 behind, 3 bad",
        "orders: 1 of 8 tasks",
    ]


def test_bars_are_for_terminals_that_are_not_to_be_quiet(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    bars = _display("orders", quiet=False)
    bars.close()
    assert isinstance(bars, BarDisplay)
    assert isinstance(_display("orders", quiet=True), LineDisplay)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(_display("orders", quiet=False), LineDisplay)
