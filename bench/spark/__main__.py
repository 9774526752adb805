"""W12: `python -m bench.spark [--rounds N] [--bars-only] [--quick]`, rows a second beside Spark's own connector.

One broker (Tidemill), one Spark driver for all contestants (see `driver.py`), order A-B-B-A. Two parts:

    the bars     reads of 1 KB and 100 B, the micro-batch, the sink: five rounds, medians, spreads and verdicts
    the matrix   {100 B, 1 KB, 10 KB} x {none, lz4, zstd} x {all columns, value and offset} x {noop, Parquet, Delta},
                 batch and stream: fewer rows and one round (`--matrix-rounds` for more), a map, not a verdict

Checksums are verified by both sides, and every contestant must have read all rows. Results go to
`bench/results/<date>-spark.{json,md}`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.markdown import Markdown

from bench.driver import run
from bench.metrics import ratio_spread
from bench.peers import ROOT, BrokerProcess, TidemillPeer
from bench.report import RESULTS, TRIALS, human, machine
from bench.session import admin, create_topics

from official_connector import SPARK_VERSION, connector_jars, connector_python  # isort: skip

PARTITIONS = 4
SIZES = (100, 1000, 10_000)
CODECS = ("none", "lz4", "zstd")
COLUMNS = ("all", "narrow")
SINKS = ("noop", "parquet", "delta")
ROWS = {100: 6_000_000, 1000: 800_000, 10_000: 80_000}  # less is over before it has begun
MATRIX_ROWS = {100: 400_000, 1000: 100_000, 10_000: 15_000}
SEGMENT_BYTES = 32 << 20  # so that most of a topic lies in closed segments
MICRO_BATCHES, MICRO_BATCH_ROWS = 25, 1000
SINK_ROWS = 600_000
READERS = ("official", "tuned", "tidemill", "segments")
WIRE_READERS = ("official", "tuned", "tidemill")
SINK_CONTESTANTS = {
    "official": ("official", "at-least-once"),
    "tuned": ("tuned", "at-least-once"),
    "tidemill": ("tidemill", "at-least-once"),
    "exactly-once": ("tidemill", "exactly-once"),
}
"""Whose sink, and what it promises; Spark's own has one promise only."""
Samples = dict[str, dict[str, list[float]]]


class Bar(NamedTuple):
    """`subject` over `reference`, at least `limit` (at most, where less is better)."""

    metric: str
    subject: str
    reference: str
    limit: float
    at_least: bool = True


BARS = (
    Bar("read 1 KB", "tidemill", "tuned", 1.0),
    Bar("read 100 B", "tidemill", "tuned", 1.3),
    Bar("read 1 KB", "segments", "tuned", 1.3),
    Bar("read 100 B", "segments", "tuned", 1.3),
    Bar("micro-batch", "tidemill", "tuned", 1.2, at_least=False),
    Bar("sink 1 KB", "tidemill", "tuned", 0.9),
    Bar("streaming sink 1 KB", "tidemill", "tuned", 0.9),
)


class SparkDriver:
    """The process that runs the jobs; see `bench.spark.driver`."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [connector_python(), "-m", "bench.spark.driver", connector_jars()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"Spark did not start:\n{self._said()}")

    def run(self, **job: Any) -> dict[str, float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._said()}
        if "error" in answer:
            raise RuntimeError(f"{job} failed:\n{answer['error']}")
        return answer

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-3000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class Measurement:
    """The broker, the driver and what was measured."""

    def __init__(
        self, peer: BrokerProcess, spark: SparkDriver, rounds: int, scale: float, console: Console
    ) -> None:
        self.peer, self.spark, self.rounds, self.scale, self.console = peer, spark, rounds, scale, console
        self.samples: Samples = {}
        self._sinks = 0

    def rows(self, size: int, rows: dict[int, int] = ROWS) -> int:
        return max(20_000, int(rows[size] * self.scale))

    def make_topic(self, name: str, size: int, codec: str, rows: int) -> int:
        """A topic with about so many messages of this size; how many exactly."""
        create_topics(self.peer, {name: PARTITIONS}, {"segment_bytes": str(SEGMENT_BYTES)})
        job = {"topic": name, "partitions": PARTITIONS, "size": size, "count": rows}
        answer = run("produce", self.peer, **job, settings={"compression.type": codec})
        return int(answer["messages"]) + PARTITIONS  # the producer's warm-up writes one to each partition

    def delete_topic(self, name: str) -> None:
        """Its pages would be written back while others are measured."""
        client = admin(self.peer)
        client.delete_topics([name], operation_timeout=30)[name].result(30)

    def record(self, metric: str, contestant: str, value: float) -> None:
        self.samples.setdefault(metric, {}).setdefault(contestant, []).append(value)

    def turns(self, what: str, contestants: Sequence[str], rounds: int) -> Iterator[str]:
        for number in range(rounds):
            for contestant in contestants if number % 2 == 0 else contestants[::-1]:
                self.console.print(f"{what}: round {number + 1} of {rounds}, {contestant}")
                yield contestant

    def read(self, contestant: str, topic: str, rows: int, **job: Any) -> float:
        """Rows a second."""
        where = {"topic": topic, "bootstrap": self.peer.bootstrap, "directory": str(self.peer.data_directory)}
        job = {"job": "read", "columns": "all", "sink": "noop", **job, **where, "contestant": contestant}
        answer = self.spark.run(**job)
        if answer.get("rows", rows) != rows:
            raise RuntimeError(f"{contestant} read {answer['rows']} of {rows} rows of {topic}")
        return rows / answer["seconds"]

    # -- the bars -------------------------------------------------------------------------------------

    def measure_bars(self) -> None:
        for size, title in ((1000, "read 1 KB"), (100, "read 100 B")):
            topic = f"rows-{size}"
            rows = self.make_topic(topic, size, "none", self.rows(size))
            for (
                contestant
            ) in READERS:  # the JVM compiles, the workers load what they need, nothing is missing
                self.read(contestant, topic, rows)
                self.read(contestant, topic, rows, job="count")
            for contestant in self.turns(title, READERS, self.rounds):
                self.record(title, contestant, self.read(contestant, topic, rows))
            self.delete_topic(topic)
        self._measure_micro_batch()
        for job, title in (("write", "sink 1 KB"), ("write_stream", "streaming sink 1 KB")):
            self._measure_sink(job, title)

    def _measure_micro_batch(self) -> None:
        """The time of a micro-batch of a thousand rows, in which the connector's own overhead is most of the work."""
        name = "rows-micro"
        self.make_topic(name, 1000, "none", MICRO_BATCHES * MICRO_BATCH_ROWS)
        for contestant in (*WIRE_READERS, *self.turns("micro-batch", WIRE_READERS, self.rounds)):
            job = {"job": "stream", "columns": "all", "sink": "noop", "per_batch": MICRO_BATCH_ROWS}
            answer = self.spark.run(**job, contestant=contestant, topic=name, bootstrap=self.peer.bootstrap)
            self.record("micro-batch", contestant, answer["batch_ms"])
        for values in self.samples["micro-batch"].values():
            del values[0]  # the first one warmed up

    def _measure_sink(self, job: str, title: str) -> None:
        rows = max(20_000, int(SINK_ROWS * self.scale))
        contestants = tuple(SINK_CONTESTANTS)
        for contestant in (*contestants, *self.turns(title, contestants, self.rounds)):
            self._sinks += 1
            topic = f"sink-{self._sinks}"
            create_topics(self.peer, {topic: PARTITIONS})
            connector, delivery = SINK_CONTESTANTS[contestant]
            facts = {
                "contestant": connector,
                "delivery": delivery,
                "topic": topic,
                "rows": rows,
                "size": 1000,
            }
            answer = self.spark.run(job=job, **facts, bootstrap=self.peer.bootstrap)
            self.record(title, contestant, rows / answer["seconds"])
            self.delete_topic(topic)
        for values in self.samples[title].values():
            del values[0]  # the first one warmed up

    # -- the matrix -----------------------------------------------------------------------------------

    def measure_matrix(self, rounds: int) -> None:
        for size in SIZES:
            for codec in CODECS:
                topic = f"matrix-{size}-{codec}"
                rows = self.make_topic(topic, size, codec, self.rows(size, MATRIX_ROWS))
                for contestant in WIRE_READERS:
                    self.read(contestant, topic, rows, job="count")
                for columns in COLUMNS:
                    title = f"{size} B, {codec}, {columns} columns"
                    self._measure_cells(topic, rows, title, columns, rounds)
                self.delete_topic(topic)

    def _measure_cells(self, topic: str, rows: int, title: str, columns: str, rounds: int) -> None:
        for job, how in (("read", "batch"), ("stream", "stream")):
            for sink in SINKS:
                cell = f"{title}, {how} to {sink}"
                for contestant in self.turns(cell, WIRE_READERS, rounds):
                    speed = self.read(contestant, topic, rows, job=job, columns=columns, sink=sink)
                    self.record(cell, contestant, speed)


# -- the report ---------------------------------------------------------------------------------------


def verdicts(samples: Samples) -> list[tuple[Bar, float, bool]]:
    found = []
    for bar in BARS:
        measured = samples.get(bar.metric, {})
        if bar.subject in measured and bar.reference in measured:
            value = statistics.median(measured[bar.subject]) / statistics.median(measured[bar.reference])
            found.append((bar, value, value >= bar.limit if bar.at_least else value <= bar.limit))
    return found


def as_markdown(samples: Samples, about: dict[str, Any]) -> str:
    lines = [
        f"Measured on {about['date']} with `{about['command']}` on {machine()['description']},",
        f"pyspark {SPARK_VERSION}; medians of {about['rounds']} interleaved rounds "
        f"({about['matrix_rounds']} in the matrix),",
        "the spread of the ratio in brackets.",
        *([] if about["scale"] == 1 else ["", "**A trial with small sizes; not to be quoted.**"]),
        "",
        "| bar | ratio | needed | |",
        "|---|---|---|---|",
    ]
    for bar, value, passed in verdicts(samples):
        needed = f"{'≥' if bar.at_least else '≤'} {bar.limit:g}x"
        outcome = "passed" if passed else "**missed**"
        low, high = ratio_spread(samples, bar.metric, bar.subject, bar.reference)
        ratio = f"{value:.2f}x ({low:.2f} to {high:.2f})"
        lines.append(f"| {bar.metric}, {bar.subject} / {bar.reference} | {ratio} | {needed} | {outcome} |")
    contestants = [*READERS, "exactly-once"]
    lines += ["", f"| rows/s (micro-batch: ms) | {' | '.join(contestants)} | tidemill / tuned |"]
    lines.append("|---" * (len(contestants) + 2) + "|")
    lines += [_row(metric, measured, contestants) for metric, measured in samples.items()]
    return "\n".join(lines) + "\n"


def _row(metric: str, measured: dict[str, list[float]], contestants: list[str]) -> str:
    medians = {name: statistics.median(values) for name, values in measured.items()}
    cells = [human(medians[name]) if name in medians else "" for name in contestants]
    ratio = (
        f"{medians['tidemill'] / medians['tuned']:.2f}x" if {"tidemill", "tuned"} <= medians.keys() else ""
    )
    return f"| {metric} | {' | '.join(cells)} | {ratio} |"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description="W12: Spark's two connectors.")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant for the bars")
    parser.add_argument("--matrix-rounds", type=int, default=1, help="turns of each contestant in the matrix")
    parser.add_argument("--bars-only", action="store_true", help="leave the matrix out")
    parser.add_argument("--quick", action="store_true", help="small sizes: a trial, not a measurement")
    return parser.parse_args(arguments)


def main() -> int:
    chosen = parse(sys.argv[1:])
    console = Console()
    scale = 0.1 if chosen.quick else 1.0
    with TidemillPeer() as peer, SparkDriver() as spark:
        measurement = Measurement(peer, spark, chosen.rounds, scale, console)
        measurement.measure_bars()
        if not chosen.bars_only:
            measurement.measure_matrix(chosen.matrix_rounds)
    about = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": " ".join(["python -m bench.spark", *sys.argv[1:]]),
        "rounds": chosen.rounds,
        "matrix_rounds": chosen.matrix_rounds,
        "scale": scale,
        "pyspark": SPARK_VERSION,
    }
    folder = TRIALS if chosen.quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    report = as_markdown(measurement.samples, about)
    (folder / f"{about['date']}-spark.md").write_text(report)
    data = {"about": about, "machine": machine(), "samples": measurement.samples}
    (folder / f"{about['date']}-spark.json").write_text(json.dumps(data, indent=1) + "\n")
    console.print(Markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
