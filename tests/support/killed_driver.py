"""A pipeline's driver as a process of its own that kills itself at a named step of the lake commit.

    python killed_driver.py job.toml STATE_FOLDER '{"files-written": 1, "committed": 1}'

The second argument says at which occurrence of which step the process ends by SIGKILL; `{}` lets it run to its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from tidemill.spark.lake import steps
from tidemill.spark.pipeline.commands import run_pipeline
from tidemill.spark.pipeline.config import load_config


def main(config: str, folder: str, deaths: str) -> None:
    seen: Counter[str] = Counter()
    fatal: dict[str, int] = json.loads(deaths)

    def hook(step: str) -> None:
        seen[step] += 1
        if fatal.get(step) == seen[step]:
            os.kill(os.getpid(), signal.SIGKILL)

    steps.hook = hook
    run_pipeline(load_config(config), "local[2]", Path(folder), quiet=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
