"""`tidemill`: the command line. One module per family of commands; this one joins them and catches what fails.

    tidemill start --data-dir data            a broker on 127.0.0.1:9092
    echo hello | tidemill produce greetings   from another terminal
    tidemill consume greetings

Exit codes: 0 done; 1 the command worked and found something wrong (doctor, log verify); 2 wrong usage, nobody
answers, or the broker refused; 130 interrupted. Set TIDEMILL_DEBUG=1 to see where an error comes from.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

EXIT_INTERRUPTED = 130


def main() -> NoReturn:
    if sys.argv[1:2] == ["start"]:
        from tidemill.cli.start import start

        sys.exit(start(sys.argv[2:]))
    from tidemill.cli.commands import app
    from tidemill.cli.errors import EXIT_REFUSED, CommandError

    try:
        app(prog_name="tidemill")
    except CommandError as error:
        _end(str(error), EXIT_REFUSED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        if os.environ.get("TIDEMILL_DEBUG"):
            raise
        _end(f"{error} (TIDEMILL_DEBUG=1 shows where this comes from)", EXIT_REFUSED)
    sys.exit(0)


def _end(sentence: str, code: int) -> NoReturn:
    print(f"tidemill: {sentence}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
