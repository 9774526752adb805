"""The modules that every request goes through, compiled where somebody asks for it; the rest is in pyproject.toml.

    TIDEMILL_NATIVE=1 pip install .

translates them to C with mypyc and needs a C compiler and Python's headers. Without the variable the same sources are
installed as they are (docs/decisions/0009-compiled-modules.md).
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup

COMPILED = (
    "api/context",
    "api/coordination",
    "api/groups",
    "api/pipeline",
    "coordination/core",
    "coordination/group/classic",
    "coordination/group/classic_join",
    "coordination/group/classic_leave",
    "coordination/group/classic_rebalance",
    "coordination/group/classic_sync",
    "coordination/group/contract",
    "coordination/group/members",
    "coordination/group/shard",
    "coordination/runtime",
    "coordination/transaction/driven",
    "coordination/transaction/shard",
    "server/connection",
    "wire/frames",
)
COMPILER = "mypy>=1.10,<3"
# An editable installation keeps to the sources: a compiled module beside one would hide every change of it.
IS_WANTED = os.environ.get("TIDEMILL_NATIVE") == "1" and "editable_wheel" not in sys.argv


def extensions() -> list[Extension]:
    if not IS_WANTED:
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        if "egg_info" in sys.argv:
            return []  # setuptools asks first what is needed, and comes again with it
        raise
    sources = [f"src/tidemill/{module}.py" for module in COMPILED]
    # What a module imports is looked at as well; an absent library must not end that.
    return list(mypycify(["--config-file=", "--ignore-missing-imports", *sources], group_name="tidemill"))


setup(setup_requires=[COMPILER] if IS_WANTED else [], ext_modules=extensions())
