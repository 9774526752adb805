"""`tidemill start`: a broker in this process, until Ctrl-C or SIGTERM.

Parsed by argparse and reached without loading the framework of the other commands: a broker that is started for
every test should not spend half of its start on a command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

EXIT_USAGE = 2
DESCRIPTION = "Start a broker: `ready HOST:PORT` on standard output when it serves, logs on standard error."
EXAMPLE = """example:
  tidemill start --data-dir data --listen 127.0.0.1:9092 --set log.retention.hours=24

Settings have Kafka's names. A flag beats --set, --set beats the file. A name that no broker has is refused in
--set and warned of in the file, which others may read as well."""


def start(arguments: Sequence[str]) -> int:
    """Run a broker with these arguments; the exit code of the process."""
    chosen = parser().parse_args(arguments)
    from tidemill.server.main import StartOptions, run

    return run(StartOptions(chosen.data_dir, chosen.listen, chosen.advertise, chosen.config, chosen.settings))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence like all others, without the usage above it."""
        self.exit(EXIT_USAGE, f"tidemill: {message}; `tidemill start --help` lists what there is\n")


def parser() -> argparse.ArgumentParser:
    """The options of `start`; the shell's completion reads them here, too."""
    options = _Parser(
        "tidemill start",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = options.add_argument
    add("--data-dir", "-d", metavar="DIR", action="append", default=[],
        help="where the data are kept; may be repeated [data]")  # fmt: skip
    add("--listen", "-l", metavar="HOST:PORT", help="port 0 takes a free one [127.0.0.1:9092]")
    add("--advertise", metavar="HOST:PORT", help="what clients connect to, if not --listen")
    add("--config", "-c", metavar="FILE", help="a server.properties as of Kafka")
    add("--set", "-s", metavar="KEY=VALUE", dest="settings", action="append", default=[],
        help="one setting; may be repeated")  # fmt: skip
    return options
