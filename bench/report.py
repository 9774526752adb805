"""What a run leaves behind: `bench/results/<date>.json`, a plot of the ratios and a table for the README.

The table has a line for each figure: both medians, the ratio with its spread over the rounds, and the verdict
where there is a bar. In the plot a bar to the right of the line is better for Tidemill, whatever the figure's
direction.
"""

from __future__ import annotations

import json
import os
import platform
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from bench.metrics import BARS, METRICS, Metric, Samples, Verdict, judge, ratio, ratio_spread
from bench.peers import KAFKA_VERSION, ROOT
from bench.statistics_of import summarise
from tidemill.server import connection

RESULTS = ROOT / "bench" / "results"
TRIALS = ROOT / ".cache" / "bench"
NAMES = {"tidemill": "Tidemill", "kafka": f"Apache Kafka {KAFKA_VERSION}"}


class Report:
    """The samples of one run, judged and written down."""

    def __init__(self, samples: Samples, subject: str, reference: str, about: dict[str, Any]) -> None:
        self.samples, self.subject, self.reference, self.about = samples, subject, reference, about
        self.verdicts = judge(samples, subject, reference)
        self.measured = [metric for metric in METRICS if metric.key in samples]

    def write(self) -> list[Path]:
        """All three files, named by date and build; their paths. Only complete runs are kept with the results."""
        folder = RESULTS if self.about["complete"] else TRIALS
        folder.mkdir(parents=True, exist_ok=True)
        name = self.about["date"] + ("" if is_compiled() else "-pure")
        data, table, plot = (folder / f"{name}.{ending}" for ending in ("json", "md", "png"))
        data.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        table.write_text(self.as_markdown())
        self.plot(plot)
        return [data, table, plot]

    def as_json(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "machine": machine(),
            "samples": self.samples,
            "summary": {
                key: {peer: summarise(values)._asdict() for peer, values in by_peer.items()}
                for key, by_peer in self.samples.items()
            },
            "bars": [
                {**v.bar._asdict(), "value": v.value, "passed": v.passed, "text": v.text}
                for v in self.verdicts
            ],
        }

    def as_markdown(self) -> str:
        subject, reference = (NAMES.get(name, name) for name in (self.subject, self.reference))
        lines = [
            f"Measured on {self.about['date']} with `{self.about['command']}` on {machine()['description']};",
            f"medians of {self.about['rounds']} interleaved rounds, the spread of the ratio in brackets.",
            *([] if self.about["scale"] == 1 else ["", "**A trial with small sizes; not to be quoted.**"]),
            "",
            f"| workload | {subject} | {reference} | ratio | bar |",
            "|---|---|---|---|---|",
            *(self._row(metric) for metric in self.measured),
            *self._beside(),
            *self._limit_lines(),
        ]
        return "\n".join(lines) + "\n"

    def _row(self, metric: Metric) -> str:
        cells = [self._cell(metric, self.subject), self._cell(metric, self.reference)]
        value = ratio(self.samples, metric.key, self.subject, self.reference)
        if value is None:
            text = ""
        else:
            low, high = ratio_spread(self.samples, metric.key, self.subject, self.reference)
            text = f"{value:.2f}x ({low:.2f} to {high:.2f})"
        return f"| {metric.workload} {metric.title} | {cells[0]} | {cells[1]} | {text} | {self._bar_cell(metric)} |"

    def _cell(self, metric: Metric, peer: str) -> str:
        values = self.samples[metric.key].get(peer)
        return f"{human(summarise(values).median)} {metric.unit}" if values else ""

    def _bar_cell(self, metric: Metric) -> str:
        return "; ".join(
            _bar_text(verdict, metric) for verdict in self.verdicts if verdict.bar.metric == metric.key
        )

    def _beside(self) -> list[str]:
        """Other kinds of brokers that were measured with the same load: no ratio, because their clients differ."""
        lines = [
            f"Beside it, {peer}: {metric.workload} {metric.title}: {self._cell(metric, peer)}."
            for metric in self.measured
            for peer in self.samples[metric.key]
            if peer not in (self.subject, self.reference)
        ]
        return ["", *lines] if lines else []

    def _limit_lines(self) -> list[str]:
        if "limit.in" not in self.samples:
            return []
        lines = [""]
        for direction, metric in (("in", "W2.none.produce"), ("out", "W2.none.consume")):
            limit = summarise(self.samples[f"limit.{direction}"]["machine"]).median
            mine = self.samples.get(metric, {}).get(self.subject)
            share = f"; Tidemill reaches {summarise(mine).median / limit:.0%} of it in W2" if mine else ""
            lines.append(f"The machine's own limit, bytes {direction}: {human(limit)} MB/s{share}.")
        return lines

    def plot(self, path: Path) -> None:
        """Ratio of every figure, turned so that more than 1 is better for the subject, on a logarithmic axis."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
        from matplotlib.ticker import FuncFormatter, NullFormatter

        rows = self._advantages()
        figure, axes = pyplot.subplots(figsize=(10, 1.4 + 0.3 * len(rows)), layout="constrained")
        places = range(len(rows), 0, -1)
        centres = [row[1] for row in rows]
        errors = [[row[1] - row[2] for row in rows], [row[3] - row[1] for row in rows]]
        colours = ["#2a7f62" if centre >= 1 else "#b5473c" for centre in centres]
        widths = [centre - 1 for centre in centres]
        axes.barh(places, widths, left=1, color=colours, height=0.62, xerr=errors, ecolor="#444", capsize=2)
        axes.scatter(
            [row[4] or float("nan") for row in rows], places, marker="|", s=160, color="black", zorder=3
        )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_yticks(list(places), [row[0] for row in rows], fontsize=8)
        axes.set_ylim(0.3, len(rows) + 0.7)
        axes.grid(axis="x", color="#ddd")
        axes.set_axisbelow(True)
        axes.set_xlabel(
            f"times better than {NAMES.get(self.reference, self.reference)} (thick tick: the bar)"
        )
        title = f"{NAMES.get(self.subject, self.subject)}, {machine()['modules']}, {self.about['date']}"
        axes.set_title(title, fontsize=11)
        figure.savefig(path, dpi=110)
        pyplot.close(figure)

    def _advantages(self) -> list[tuple[str, float, float, float, float | None]]:
        """(label, advantage, its low, its high, the bar) of each figure that both sides have."""
        limits = {bar.metric: bar.limit for bar in BARS if bar.kind == "ratio"}
        rows = []
        for metric in self.measured:
            value = ratio(self.samples, metric.key, self.subject, self.reference)
            if value is None:
                continue
            low, high = ratio_spread(self.samples, metric.key, self.subject, self.reference)
            bar = limits.get(metric.key)
            if not metric.higher:
                value, low, high, bar = 1 / value, 1 / high, 1 / low, 1 / bar if bar else None
            rows.append((f"{metric.workload} {metric.title}", value, min(low, value), max(high, value), bar))
        return rows


def _bar_text(verdict: Verdict, metric: Metric) -> str:
    sign = "≥" if metric.higher else "≤"
    unit = {"ratio": "x", "own": "x own", "fixed": f" {metric.unit}"}[verdict.bar.kind]
    outcome = "passed" if verdict.passed else "**missed**"
    value = f" at {verdict.value:.2f}x" if verdict.bar.kind == "own" else ""
    return f"{sign} {verdict.bar.limit:g}{unit}: {outcome}{value}"


def human(value: float) -> str:
    """Three significant digits, thousands separated: 612,000; 1.23; 0.412."""
    if value >= 100:
        digits = max(0, len(str(int(value))) - 3)
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def is_compiled() -> bool:
    """Whether this process, and so each broker and client that it started, runs compiled modules (decision 0009)."""
    return connection.__file__.endswith(tuple(EXTENSION_SUFFIXES))


def machine() -> dict[str, Any]:
    cores = os.cpu_count()
    memory_gb = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)
    python = platform.python_version()
    modules = "compiled modules" if is_compiled() else "pure Python"
    return {
        "description": f"{cores} cores, {memory_gb} GB, Linux, Python {python}, {modules}",
        "cores": cores,
        "memory_gb": memory_gb,
        "python": python,
        "modules": modules,
        "kernel": platform.release(),
    }
