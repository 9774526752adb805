"""A function in two forms: plain, with numpy, and compiled by numba once there is enough work for it.

    SCANNER = Compiled(scan_by_numpy, load_scanner, worth_compiling=400_000)
    SCANNER.choose(record_count, expected)(buffer, pieces)

Numba takes half a second to be imported, so it is only fetched when that pays: for a large query, or in a process that
has worked on as many records in small portions. `load` must call the compiled form once. A numba that is not there is
none; one that cannot be imported, or not run, is worth a warning and nothing more.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


class Compiled(Generic[F]):
    def __init__(self, plain: F, load: Callable[[], F], worth_compiling: int) -> None:
        self._plain = plain
        self._load = load
        self.worth_compiling = worth_compiling
        """Records from which on the compiled form is faster, its import included."""
        self._done = 0
        self.chosen: F | None = None
        """The form to use from now on; None while it is not worth the question."""

    def choose(self, count: int, expected: int = 0) -> F:
        """The form for these records; `expected` is how many this process will probably come to in all."""
        self._done += count
        if self.chosen is None and max(self._done, expected) >= self.worth_compiling:
            self.chosen = self.load()
        return self.chosen or self._plain

    def load(self) -> F:
        """The compiled form, tried once; the plain one when there is none or this machine cannot run it."""
        if importlib.util.find_spec("numba") is None:
            return self._plain
        try:
            return self._load()
        except Exception as error:  # whatever is wrong with a compiler, the work can be done without it
            logger.warning("numba does not work here, records are worked on more slowly: %s", error)
            return self._plain
