"""RabbitMQ as a neighbour: one node on loopback with Debian's package, behind the same interface as the brokers.

    with RabbitPeer() as rabbit:
        pika.BlockingConnection(pika.ConnectionParameters(port=rabbit.port))

Its files, its Erlang cookie and its name server (epmd) are its own: nothing of a RabbitMQ that runs on the machine is
touched, and nothing is left. `RabbitPeer.install()` installs the package where that is possible (root and apt-get).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from broker_process import free_port
from kafka_jars import PACKAGES, install

from bench.peers import BrokerProcess

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The package's own script; the one on the path insists on the system's user and folders."""


class RabbitPeer(BrokerProcess):
    name = "rabbitmq"
    start_seconds = 90.0

    def __init__(self) -> None:
        super().__init__()
        self._epmd_port, self._node_port = free_port(), free_port()

    @staticmethod
    def install() -> None:
        """Raises `Missing`, with the sentence for a person, where it cannot be installed."""
        PACKAGES.setdefault("rabbitmq-server", "rabbitmq-server")
        install(["rabbitmq-server"])

    def environment(self) -> Mapping[str, str]:
        scratch = self._scratch
        return {
            **os.environ,
            "HOME": str(scratch),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_MNESIA_BASE": str(self.data_directory),
            "RABBITMQ_LOG_BASE": str(scratch / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(scratch / "plugins"),
            "RABBITMQ_PID_FILE": str(scratch / "pid"),
            "RABBITMQ_CONFIG_FILE": str(scratch / "rabbitmq"),
        }

    def command(self) -> list[str]:
        pairs = [
            f"{key}={value}" for key, value in self.environment().items() if os.environ.get(key) != value
        ]
        return ["env", *pairs, str(PROGRAM)]

    def is_ready(self, output: str) -> bool:
        return "completed with" in output

    def close(self) -> None:
        try:
            super().close()
        finally:
            epmd = shutil.which("epmd")
            if epmd is not None:
                command = [epmd, "-port", str(self._epmd_port), "-kill"]
                subprocess.run(command, capture_output=True, check=False, timeout=10)
