"""What the Spark part refuses, and how it says so.

Spark shows only the text of an exception that a Python data source raises, so the text carries everything: the name of
the option or partition, what is wrong with it, and what to do.
"""

from __future__ import annotations

from tidemill.model.errors import TidemillError


class BadOption(TidemillError, ValueError):
    """An option that cannot be honoured; the text names it and says what is allowed."""

    def __init__(self, name: str, problem: str, allowed: str = "") -> None:
        self.name, self.problem, self.allowed = name, problem, allowed
        super().__init__(f"option {name} {problem}" + (f"; allowed: {allowed}" if allowed else ""))

    def __reduce__(self) -> tuple[type[BadOption], tuple[str, str, str]]:
        return type(self), (self.name, self.problem, self.allowed)


class DataLoss(TidemillError):
    """Records that a query was promised are gone, and `failOnDataLoss` is true."""


class BrokerUnavailable(TidemillError, ConnectionError):
    """No broker of the cluster answered, or the one that must answer did not."""
