"""The figures by name, and the bars that Tidemill has to reach.

A metric's key is `<workload>.<what>`; its unit decides nothing, `higher` says which direction is good. A bar
compares the subject (Tidemill) with the reference (Apache Kafka), with itself, or with a fixed number:

    Bar("W1.produce", "ratio", 1.1)          at least 1.1 times the reference, because higher is better
    Bar("W4.ack_p99", "ratio", 1.0)          at most 1.0 times the reference, because lower is better
    Bar("W11.memory", "fixed", 120)          at most 120 (in the metric's unit)
    Bar("W6.large_p99", "own", 2.0, "W6.small_p99")   at most twice its own other figure
"""

from __future__ import annotations

import statistics
from typing import Literal, NamedTuple

Samples = dict[str, dict[str, list[float]]]  # metric -> peer -> one value per round


class Metric(NamedTuple):
    key: str
    title: str
    unit: str
    higher: bool

    @property
    def workload(self) -> str:
        return self.key.partition(".")[0]


class Bar(NamedTuple):
    metric: str
    kind: Literal["ratio", "own", "fixed"]
    limit: float
    base: str = ""


class Verdict(NamedTuple):
    bar: Bar
    value: float
    passed: bool
    text: str


def _throughput(codec: str) -> list[Metric]:
    return [
        Metric(f"W2.{codec}.produce", f"produce, 1 KB, 10 partitions, {codec}", "MB/s", True),
        Metric(f"W2.{codec}.consume", f"consume, 1 KB, 10 partitions, {codec}", "MB/s", True),
        Metric(f"W2.{codec}.produce_cpu", f"broker CPU to take in a GB, {codec}", "s/GB", False),
        Metric(f"W2.{codec}.consume_cpu", f"broker CPU to give out a GB, {codec}", "s/GB", False),
    ]


def _end_to_end(rate: int) -> list[Metric]:
    return [
        Metric(f"W3.{rate}.p50", f"end to end p50 at {rate}/s, 16 partitions", "ms", False),
        Metric(f"W3.{rate}.p99", f"end to end p99 at {rate}/s, 16 partitions", "ms", False),
        Metric(f"W3.{rate}.p999", f"end to end p99.9 at {rate}/s, 16 partitions", "ms", False),
    ]


METRICS: list[Metric] = [
    Metric("W1.produce", "produce, 100 B, one partition", "messages/s", True),
    Metric("W1.consume", "consume, 100 B, one partition", "messages/s", True),
    *_throughput("none"),
    *_throughput("lz4"),
    *_throughput("zstd"),
    *_end_to_end(1000),
    *_end_to_end(5000),
    Metric("W4.ack_p50", "acknowledgement p50, one in flight", "ms", False),
    Metric("W4.ack_p99", "acknowledgement p99, one in flight", "ms", False),
    Metric("W4.fsync_p50", "acknowledgement p50, fsync before it", "ms", False),
    Metric("W4.fsync_p99", "acknowledgement p99, fsync before it", "ms", False),
    Metric("W4.idle_p99", "acknowledgement p99 just before a compaction", "ms", False),
    Metric("W4.compacting_p99", "acknowledgement p99 while 1 GB compacts", "ms", False),
    Metric("W4.compaction", "compaction of 1 GB under that load", "s", False),
    Metric("W5.drain", "drain of a 1 GB backlog while producing goes on", "MB/s", True),
    Metric("W5.live_p99", "live end to end p99 during the drain", "ms", False),
    Metric("W6.topics_create", "create 1,000 topics", "s", False),
    Metric("W6.topics_p99", "acknowledgement p99 over 1,000 topics", "ms", False),
    Metric("W6.topics_memory", "memory with 1,000 topics", "MB", False),
    Metric("W6.large_create", "grow from 1,000 to 10,000 partitions", "s", False),
    Metric("W6.small_p99", "acknowledgement p99, broker with 100 partitions", "ms", False),
    Metric("W6.large_p99", "acknowledgement p99, broker with 10,000 partitions", "ms", False),
    Metric("W6.large_memory", "memory with 10,000 partitions", "MB", False),
    Metric("W6.large_restart", "restart to first acknowledgement, 10,000 partitions", "s", False),
    Metric("W7.accepted", "work queue, 50 consumers, 5 % given back", "messages/s", True),
    Metric("W7.redelivery_p99", "p99 from giving back to coming again", "ms", False),
    Metric("W9.copy", "transactional copy, 100 messages a transaction", "messages/s", True),
    Metric("W9.transaction_p99", "p99 of a transaction of 100 messages", "ms", False),
    *(Metric(f"rebalance.{size}", f"to the last of {size} members", "ms", False) for size in (2, 20, 200)),
    Metric("rebalance.shared", "to the last of 200 members, cores shared with the client", "ms", False),
    Metric("W11.first_ack", "process start to first acknowledged message", "ms", False),
    Metric("W11.memory", "memory when idle", "MB", False),
]
BY_KEY = {metric.key: metric for metric in METRICS}

BARS: list[Bar] = [
    Bar("W1.produce", "ratio", 1.1),
    Bar("W1.consume", "ratio", 1.0),
    Bar("W2.none.produce", "ratio", 1.5),
    Bar("W2.none.consume", "ratio", 1.0),
    Bar("W3.1000.p99", "ratio", 1.0),
    Bar("W3.5000.p99", "ratio", 0.5),
    Bar("W4.ack_p99", "ratio", 1.0),
    Bar("W4.fsync_p99", "ratio", 1.0),
    Bar("W4.compacting_p99", "own", 2.0, "W4.idle_p99"),
    Bar("W5.drain", "ratio", 1.0),
    Bar("W9.copy", "ratio", 1.0),
    *(Bar(f"rebalance.{size}", "ratio", 1.0) for size in (2, 20, 200)),
    Bar("W6.large_p99", "own", 2.0, "W6.small_p99"),
    Bar("W11.first_ack", "fixed", 700),
    Bar("W11.first_ack", "ratio", 0.25),
    Bar("W11.memory", "fixed", 120),
]


def ratio(samples: Samples, metric: str, subject: str, reference: str) -> float | None:
    """Median of the subject over median of the reference, or None when one was not measured."""
    measured = samples.get(metric, {})
    if not measured.get(subject) or not measured.get(reference):
        return None
    return statistics.median(measured[subject]) / statistics.median(measured[reference])


def ratio_spread(samples: Samples, metric: str, subject: str, reference: str) -> tuple[float, float]:
    """The smallest and the largest ratio of two turns of the same round."""
    measured = samples[metric]
    ratios = [mine / theirs for mine, theirs in zip(measured[subject], measured[reference], strict=False)]
    return min(ratios), max(ratios)


def judge(samples: Samples, subject: str, reference: str) -> list[Verdict]:
    """Every bar whose figures were measured."""
    verdicts = []
    for bar in BARS:
        value = _value(samples, bar, subject, reference)
        if value is not None:
            verdicts.append(_verdict(bar, value))
    return verdicts


def _value(samples: Samples, bar: Bar, subject: str, reference: str) -> float | None:
    mine = samples.get(bar.metric, {}).get(subject)
    if not mine:
        return None
    if bar.kind == "ratio":
        return ratio(samples, bar.metric, subject, reference)
    if bar.kind == "fixed":
        return statistics.median(mine)
    base = samples.get(bar.base, {}).get(subject)
    return statistics.median(mine) / statistics.median(base) if base else None


def _verdict(bar: Bar, value: float) -> Verdict:
    metric = BY_KEY[bar.metric]
    passed = value >= bar.limit if metric.higher else value <= bar.limit
    against = {
        "ratio": "times the reference",
        "fixed": metric.unit,
        "own": f"times its own {BY_KEY[bar.base].title}" if bar.base else "",
    }[bar.kind]
    side = "at least" if metric.higher else "at most"
    text = f"{metric.workload} {metric.title}: {value:.3g} {against} (bar: {side} {bar.limit:g})"
    return Verdict(bar, value, passed, text)
