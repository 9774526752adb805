"""The compiled modules do what their sources do: the tests that know them best, and real clients, once more on them."""

from __future__ import annotations

import importlib.machinery
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kafka_jars import ROOT
from native_build import NATIVE, native_environment

UNIT_TESTS = [
    f"tests/unit/{room}" for room in ("api", "coordination", "replication", "server", "timing", "wire")
]
CLIENT_TESTS = ["tests/compat"]
KILLS = ["tests/faults", "tests/simulation"]
NOT_PLANTED = "not planted_defect"
"""Planted defects show that the checks can fail; they are patched in, and compiled code does not ask for the patch."""
SECONDS = 900


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {**os.environ, **native_environment()}


def listed() -> list[str]:
    """The modules that setup.py names."""
    text = (ROOT / "setup.py").read_text()
    return re.findall(r'^    "([a-z_/]+)",$', text, re.MULTILINE)


def test_the_broker_runs_the_compiled_modules(environment: dict[str, str]) -> None:
    names = ["tidemill." + module.replace("/", ".") for module in listed()]
    program = f"import importlib\nfor name in {names}: print(importlib.import_module(name).__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    files = [Path(line) for line in done.stdout.split()]
    assert len(files) == len(names) >= 18
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    assert all(file.is_relative_to(NATIVE) and file.name.endswith(suffixes) for file in files), files


@pytest.mark.parametrize("folders", [UNIT_TESTS, CLIENT_TESTS, KILLS], ids=["unit", "clients", "kills"])
def test_the_tests_pass_on_the_compiled_modules(environment: dict[str, str], folders: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-k", NOT_PLANTED]
    command += ["--numprocesses=2", "--dist=loadfile", *folders]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 20, done.stdout[-400:]
