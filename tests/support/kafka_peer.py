"""Apache Kafka as a neighbour: one node in KRaft combined mode on loopback, for comparison and
interoperation.

    from kafka_peer import KafkaPeer

    with KafkaPeer(settings={"log.segment.bytes": 1048576}) as kafka:
        kafka.bootstrap            # "127.0.0.1:40123", free ports, ready for clients
        kafka.data_directory       # formatted on the first start, removed at the end unless you named it
        kafka.stop(); kafka.start()

Java 17 and Maven must be on the machine (`make interop` sees to it); the jars are fetched on first use, see
`kafka_jars.py`. One gigabyte of heap and the JVM options of Kafka's own start script, broker settings as
Kafka's defaults except what a single node needs. A start takes 2 to 4 seconds, so share one between tests.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from broker_process import BrokerProcess, free_port
from kafka_jars import java_command

CLUSTER_ID = "VGlkZW1pbGwtcGVlci0wMQ"  # any 16 bytes as base64 text
JVM_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


class KafkaPeer(BrokerProcess):
    """One node of Apache Kafka, broker and controller in the same process."""

    name = "kafka"
    start_seconds = 60.0
    stop_seconds = 60.0

    def __init__(
        self,
        data_directory: Path | str | None = None,
        settings: dict[str, object] | None = None,
        port: int | None = None,
        node_id: int = 1,
    ) -> None:
        super().__init__(data_directory, settings, port)
        self.node_id = node_id
        self.controller_port = free_port()

    @property
    def properties_path(self) -> Path:
        return self._scratch / "server.properties"

    def prepare(self) -> None:
        super().prepare()
        lines = [f"{key}={value}" for key, value in self._properties().items()]
        self.properties_path.write_text("\n".join(lines) + "\n")
        if not (self.data_directory / "meta.properties").exists():
            self._format()

    def _properties(self) -> dict[str, object]:
        controller = f"127.0.0.1:{self.controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": self.node_id,
            "controller.quorum.voters": f"{self.node_id}@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": self.data_directory,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **self.settings,
        }

    def _format(self) -> None:
        arguments = ("format", "--cluster-id", CLUSTER_ID, "--config", str(self.properties_path))
        command = java_command("kafka.tools.StorageTool", *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Kafka could not format {self.data_directory}:\n{done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        return java_command("kafka.Kafka", str(self.properties_path), options=JVM_OPTIONS)

    def is_ready(self, output: str) -> bool:
        return "Kafka Server started" in output
