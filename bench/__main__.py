"""The command line: `python -m bench [W1 W2 …] [--rounds N] [--peers tidemill,kafka] [--quick]`."""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
import time
import traceback
from collections.abc import Callable

from confluent_kafka import libversion
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from bench.limit import measure_limit
from bench.metrics import Samples
from bench.peers import KAFKA_VERSION
from bench.report import Report
from bench.session import Plan, Session
from bench.workloads.backlog import measure_w5
from bench.workloads.groups import measure_rebalance
from bench.workloads.latency import measure_w3, measure_w4
from bench.workloads.partitions import measure_w6
from bench.workloads.queues import measure_w7
from bench.workloads.startup import measure_w11
from bench.workloads.throughput import measure_w1, measure_w2
from bench.workloads.transactions import measure_w9

WORKLOADS: dict[str, Callable[[Session], None]] = {
    "W1": measure_w1,
    "W2": measure_w2,
    "W3": measure_w3,
    "W4": measure_w4,
    "W5": measure_w5,
    "W7": measure_w7,
    "W9": measure_w9,
    "rebalance": measure_rebalance,
    "limit": measure_limit,
    "W11": measure_w11,
    "W6": measure_w6,
}
QUICK = Plan(rounds=2, scale=0.1)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Tidemill beside Apache Kafka.")
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"some of {', '.join(WORKLOADS)}; default all"
    )
    parser.add_argument("--rounds", type=int, help="turns of each broker (default 5)")
    parser.add_argument("--peers", default="tidemill,kafka", help="subject and reference, e.g. kafka:2,kafka")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, two rounds: a trial, not a measurement"
    )
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"there is no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    return chosen


def measure(chosen: argparse.Namespace, plan: Plan, console: Console) -> Samples:
    """Run the workloads; what was measured before an interruption or a failure is kept."""
    names = [name for name in WORKLOADS if name in chosen.workloads or not chosen.workloads]
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=len(names))

        def say(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(f"{time.strftime('%H:%M:%S')} {text}")

        session = Session(chosen.peers.split(","), plan, say)
        try:
            for name in names:
                _one(name, session, console)
                progress.advance(task)
        except KeyboardInterrupt:
            console.print("interrupted; reporting what was measured so far")
        finally:
            session.close()
    return session.samples


def _one(name: str, session: Session, console: Console) -> None:
    began = time.monotonic()
    try:
        WORKLOADS[name](session)
    except Exception:
        console.print(f"[bold red]{name} failed and is left out:")
        console.print(traceback.format_exc(limit=-4), markup=False)
        session.close()
    console.print(f"{name} took {time.monotonic() - began:.0f} s")


def main() -> int:
    chosen = parse(sys.argv[1:])
    plan = QUICK if chosen.quick else Plan()
    plan = plan._replace(rounds=chosen.rounds or plan.rounds)
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave no broker behind
    samples = measure(chosen, plan, console)
    if not samples:
        return 1
    subject, reference = (chosen.peers.split(",") * 2)[:2]
    now = datetime.datetime.now(datetime.UTC)
    about = {
        "date": now.date().isoformat(),
        "command": " ".join(["python -m bench", *sys.argv[1:]]),
        "rounds": plan.rounds,
        "scale": plan.scale,
        "complete": not chosen.quick and not chosen.workloads,
        "librdkafka": libversion()[0],
        "kafka": KAFKA_VERSION,
    }
    report = Report(samples, subject, reference, about)
    paths = report.write()
    console.print(Markdown(report.as_markdown()))
    for verdict in report.verdicts:
        console.print(
            f"[{'green' if verdict.passed else 'bold red'}]{'passed' if verdict.passed else 'MISSED'}[/] {verdict.text}"
        )
    console.print("written: " + ", ".join(str(path) for path in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
