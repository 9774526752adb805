"""The public entry of the server: start a broker inside a loop, or run one as a process of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import sys

from tidemill.ports.machine import machine_checks
from tidemill.server.broker import Broker
from tidemill.server.options import DEFAULT_LISTEN, StartError, StartOptions, resolve

__all__ = ["DEFAULT_LISTEN", "StartError", "StartOptions", "run", "start_broker"]

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2
GARBAGE_THRESHOLD = 50_000
"""Allocations between collections of young objects; the broker makes few cycles, and pauses cost latency."""


async def start_broker(options: StartOptions) -> Broker:
    """A broker that serves when this returns; `await broker.stop()` ends it."""
    broker = Broker(resolve(options))
    try:
        await broker.start()
    except BaseException:
        await broker.abandon()
        raise
    return broker


def run(options: StartOptions) -> int:
    """Serve until SIGTERM or SIGINT; the exit code of the process."""
    import uvloop

    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s %(message)s"
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(options))
    except StartError as error:
        print(f"tidemill: {error}", file=sys.stderr)
        return EXIT_USAGE


async def _serve(options: StartOptions) -> int:
    broker = await start_broker(options)
    _check_machine()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker.on_failure = stopping.set
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 50, 100)
    print(f"ready {broker.host}:{broker.port}", flush=True)
    _say_what_to_try(broker)
    await stopping.wait()
    logger.info("stopping: answering what was asked, then writing checkpoints")
    await broker.stop()
    return EXIT_FAILED if broker.has_failed else 0


def _check_machine() -> None:
    """Limits that many partitions would run into, in one line with the commands that raise them."""
    low = [
        f"{check.name} is {check.found} ({check.remedy})" for check in machine_checks() if not check.is_good
    ]
    if low:
        logger.warning("low for thousands of partitions: %s; `tidemill doctor` says why", ", ".join(low))


def _say_what_to_try(broker: Broker) -> None:
    address = f"{broker.host}:{broker.port}"
    program, option = _program(), "" if address == DEFAULT_LISTEN else f" --bootstrap {address}"
    print(
        "\nTry, in another terminal:\n"
        f"  echo hello | {program} produce greetings{option}\n"
        f"  {program} consume greetings{option}\n"
        f"  {program} topics list{option}\n"
        f"or point any Kafka client at {address}. Ctrl-C stops the broker.\n",
        file=sys.stderr,
        flush=True,
    )


def _program() -> str:
    """How to call this program from here: by its name, or by its path if it is not on the search path."""
    path = os.path.abspath(sys.argv[0])
    if os.path.basename(path) != "tidemill" or shutil.which("tidemill") == path:
        return "tidemill"
    return os.path.relpath(path)
