"""A page about a run that has ended: what it did, how fast, and the job's own tables. One file, no network.

`render` takes the status, the events and the summaries, all as plain data, and returns HTML with the plots as SVG
inside it. A plot is a line through the batches: messages per second, milliseconds per batch, messages behind.
"""

from __future__ import annotations

import datetime
import html
from collections.abc import Sequence
from typing import Any, NamedTuple

WIDTH, HEIGHT, MARGIN = 720, 180, 48
COLOURS = ("#1f6f8b", "#d1495b", "#66a182", "#8d6a9f", "#c77d1e", "#444444")
PLOTS = (
    ("messages_per_second", "Messages per second"),
    ("batch_ms", "Milliseconds per batch"),
    ("behind", "Messages behind"),
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; } th, td { padding: .25em .8em; text-align: left; }
th { border-bottom: 2px solid #888; } td { border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; }
.failed { color: #b3261e; } svg { background: #fafafa; } figure { margin: 1.5em 0; }
"""


class SummaryTable(NamedTuple):
    """A summary of the job, read from its frame."""

    title: str
    columns: list[str]
    rows: list[list[Any]]


class Point(NamedTuple):
    seconds: float
    value: float


def render(
    status: dict[str, Any], events: Sequence[dict[str, Any]], summaries: Sequence[SummaryTable]
) -> str:
    """The whole page."""
    batches = [event for event in events if event["event"] == "batch"]
    parts = [
        f"<h1>{_text(status['name'])}</h1>",
        _facts(status),
        _queries(status),
        *[_plot(batches, status["started"], field, title) for field, title in PLOTS],
        *[_table(each.title, each.columns, each.rows) for each in summaries],
    ]
    title = _text(f"{status['name']}: {status['state']}")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{''.join(filter(None, parts))}</body></html>\n"


def _facts(status: dict[str, Any]) -> str:
    took = status.get("ended", status.get("updated", status["started"])) - status["started"]
    state = f'<span class="{_text(status["state"])}">{_text(status["state"])}</span>'
    words = f"Job {_text(status['job'])} on {_text(status.get('master', '?'))}, begun {_moment(status['started'])}, "
    error = f'<p class="failed">{_text(status["error"])}</p>' if status.get("error") else ""
    return f"<p>{words}{state} after {took:,.1f} s.</p>{error}"


def _queries(status: dict[str, Any]) -> str:
    columns = ["query", "batches", "messages", "rows", "bad_rows", "behind"]
    rows = [
        [name, *[facts.get(column) for column in columns[1:]]] for name, facts in status["queries"].items()
    ]
    return _table("Queries", columns, rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<h2>{_text(title)}</h2><table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return "&ndash;"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3g}" if isinstance(value, float) else _text(value)


def _plot(batches: Sequence[dict[str, Any]], started: float, field: str, title: str) -> str:
    """Nothing when no batch knows the field."""
    lines: dict[str, list[Point]] = {}
    for event in batches:
        if event.get(field) is not None:
            lines.setdefault(event["query"], []).append(Point(event["time"] - started, float(event[field])))
    if not lines:
        return ""
    widest = max(point.seconds for points in lines.values() for point in points) or 1.0
    tallest = max(point.value for points in lines.values() for point in points) or 1.0
    drawn = "".join(
        _line(points, widest, tallest, COLOURS[number % len(COLOURS)], name)
        for number, (name, points) in enumerate(lines.items())
    )
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    plot = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{_axes(widest, tallest)}{drawn}</svg>'
    return f"<figure><figcaption>{_text(title)}</figcaption>{plot}</figure>"


def _axes(widest: float, tallest: float) -> str:
    bottom, right = HEIGHT - MARGIN / 2, WIDTH - 8
    path = f"M{MARGIN},8 V{bottom} H{right}"
    label = 'font-size="11" fill="#555"'
    return (
        f'<path d="{path}" fill="none" stroke="#999"/>'
        f'<text x="{MARGIN - 4}" y="16" text-anchor="end" {label}>{tallest:,.0f}</text>'
        f'<text x="{MARGIN - 4}" y="{bottom}" text-anchor="end" {label}>0</text>'
        f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end" {label}>{widest:,.1f} s</text>'
    )


def _line(points: list[Point], widest: float, tallest: float, colour: str, name: str) -> str:
    across, up = WIDTH - MARGIN - 8, HEIGHT - MARGIN / 2 - 8
    places = [
        (MARGIN + point.seconds / widest * across, HEIGHT - MARGIN / 2 - point.value / tallest * up)
        for point in points
    ]
    path = " ".join(f"{'L' if number else 'M'}{x:.1f},{y:.1f}" for number, (x, y) in enumerate(places))
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places)
    return f'<g><title>{_text(name)}</title><path d="{path}" fill="none" stroke="{colour}"/>{dots}</g>'


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _text(value: Any) -> str:
    return html.escape(str(value))
