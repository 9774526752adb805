"""Apache Kafka's own command-line tools, run as a person would, with an answer that tests can read.

    kafka_tool("TopicCommand", "--bootstrap-server", address, "--list")     # what it printed

The short names stand for the classes behind `kafka-topics.sh` and its siblings. A tool that fails raises with
everything it said, because that text is what explains a difference between two brokers. Each call starts a
Java virtual machine, about a second, so ask for several things in one call where the tool can.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kafka_jars import java_command, require

PACKAGE = "org.apache.kafka.tools"
ELSEWHERE = {
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "StorageTool": "kafka.tools.StorageTool",
    "ConsoleConsumer": f"{PACKAGE}.consumer.ConsoleConsumer",
    "ConsoleShareConsumer": f"{PACKAGE}.consumer.ConsoleShareConsumer",
    "ShareGroupCommand": f"{PACKAGE}.consumer.group.ShareGroupCommand",
    "ConsumerGroupCommand": f"{PACKAGE}.consumer.group.ConsumerGroupCommand",
}
TOOL_SECONDS = 120
JAVA_SOURCES = Path(__file__).resolve().parents[1] / "interop" / "java"


class ToolFailed(AssertionError):
    """A tool ended with an error; the text is what it said."""


def kafka_tool(name: str, *arguments: str, standard_input: str = "", expect_failure: bool = False) -> str:
    """Run a tool to its end; standard output and standard error together."""
    command = java_command(ELSEWHERE.get(name, f"{PACKAGE}.{name}"), *arguments)
    return _run(name, command, standard_input, expect_failure)


def java_program(name: str, *arguments: str) -> str:
    """Run a program of tests/interop/java on Kafka's own Java client; it is compiled as it is started."""
    require("javac")
    return _run(name, java_command(str(JAVA_SOURCES / f"{name}.java"), *arguments), "", False)


def _run(name: str, command: list[str], standard_input: str, expect_failure: bool) -> str:
    done = subprocess.run(
        command,
        input=standard_input,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TOOL_SECONDS,
        check=False,
    )
    if (done.returncode != 0) != expect_failure:
        said = " ".join(command[command.index("-cp") + 2 :])
        raise ToolFailed(f"{name}: {said} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


class DumpedRecord(NamedTuple):
    """A record as DumpLogSegments prints it; absent keys and values are None."""

    offset: int
    key: str | None
    payload: str | None


RECORD = re.compile(r"^\| offset: (\d+)(?P<facts>.*?)(?: key: (?P<key>.*?))?(?: payload: (?P<payload>.*))?$")


def dump_log(files: Iterable[Path], *options: str) -> str:
    """DumpLogSegments on several files of any kind at once."""
    return kafka_tool("DumpLogSegments", "--files", ",".join(map(str, files)), *options)


def dumped_records(text: str) -> list[DumpedRecord]:
    """The records in the output of `dump_log(…, "--print-data-log")`."""
    found = (RECORD.match(line) for line in text.splitlines())
    return [DumpedRecord(int(match[1]), match["key"], match["payload"]) for match in found if match]


# What DumpLogSegments says when something is wrong. It ends with exit code 0 all the same. (Its "Non-consecutive
# offsets" is not among them: it says that of the first batch of every segment but the first.)
COMPLAINTS = (
    "isvalid: false",
    "mismatch",
    "out of order",
    "Corrupt",
    "corrupt",
    "sanity check failed",
    "Failed to",
    "Could not",
    "invalid bytes",
    "Exception",
    "Error",
)


def complaints(text: str) -> list[str]:
    return [line for line in text.splitlines() if any(complaint in line for complaint in COMPLAINTS)]
