"""The steps of the protocol, told to the log as they are reached.

    logging.getLogger("tidemill.spark.sink").setLevel(logging.DEBUG)
    DEBUG tidemill.spark.sink: 5d6c…/17 opened

Each step is a point at which a process may die; docs/decisions/0021 says for each what happens then. The log record
carries `query`, `batch` and `step` as attributes, for whoever wants to act on them.
"""

from __future__ import annotations

import enum
import logging

LOGGER = logging.getLogger("tidemill.spark.sink")


class Step(enum.StrEnum):
    """In the order in which a batch passes them."""

    WRITING = "writing"
    """A task has begun: nothing is written yet."""
    STAGED = "staged"
    """A task has staged all it will; its commit message is not sent yet."""
    COMMITTING = "committing"
    """All tasks are done, the driver was asked to commit."""
    FENCED = "fenced"
    """Every earlier transaction of the query has ended, older drivers are shut out."""
    UNDECIDED = "undecided"
    """The batch has no decision record: it will be published."""
    OPENED = "opened"
    """The partitions are part of the transaction."""
    PUBLISHED = "published"
    """All rows are in their partitions, invisible."""
    DECIDED = "decided"
    """The decision record is in the same transaction, also invisible."""
    COMMITTED = "committed"
    """The transaction is committed: rows and decision are visible."""
    CLEANED = "cleaned"
    """The staged copies are gone."""
    SKIPPED = "skipped"
    """The batch had a decision record: it was published before and is not published again."""


def reached(query: str, batch: int, step: Step) -> None:
    LOGGER.debug("%s/%d %s", query, batch, step, extra={"query": query, "batch": batch, "step": str(step)})
