"""The jobs of the pipeline, by name. Each is a module of pure transformations and a few lines of wiring.

    find_job("archive").summary

A module is imported when its job is asked for: `tidemill --help` starts no Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.spark.jobs.job import Job

JOBS = {
    "archive": "topics to a table, each message once",
    "activity": "sessions, page counts by window, top pages and funnels of a stream of events",
    "logs": "log lines parsed, enriched, counted by level and service; alerts to a topic",
    "sync": "change events of Debezium or Canal to a table that is equal to the source's",
    "deadletters": "dead letters: why, where, how often, and whether it gets worse",
    "audit": "produced, stored and consumed per window, and every difference by name",
    "replay": "rows of a table back to a topic, by time or filter",
}


def find_job(name: str) -> Job | None:
    if name not in JOBS:
        return None
    job: Job = importlib.import_module(f"tidemill.spark.jobs.{name}").JOB
    return job
