"""Tidemill as a process of its own, started through its command line; the same interface as `KafkaPeer`.

    from tidemill_peer import TidemillPeer

    with TidemillPeer(settings={"log.segment.bytes": 1048576}) as broker:
        broker.bootstrap

Settings are passed as `--set key=value`. Ready means the line `ready HOST:PORT` on standard output.
"""

from __future__ import annotations

import sys
from pathlib import Path

from broker_process import BrokerProcess


class TidemillPeer(BrokerProcess):
    """One Tidemill broker, from the environment of the Python that runs this."""

    name = "tidemill"

    def command(self) -> list[str]:
        program = str(Path(sys.executable).parent / "tidemill")
        command = [program, "start", "--data-dir", str(self.data_directory), "--listen", self.bootstrap]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return command

    def is_ready(self, output: str) -> bool:
        return any(line.startswith("ready ") for line in output.splitlines())
