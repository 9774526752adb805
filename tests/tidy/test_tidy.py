"""Style as a test with a ratchet: the numbers below may only go down.

They are measured over `src/tidemill` (functions and files) and over everything that is in the repository (words and
paths). When a number can go down, lower it here in the same change; when it must go up, the code is what must change.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

LONGEST_FUNCTION_LINES = 70
LONGEST_FILE_LINES = 600
LONGEST_TEST_FILE_LINES = 600
MEDIAN_FUNCTION_LINES = 8
P95_FUNCTION_LINES = 45
FUNCTIONS_WITHOUT_RETURN_ANNOTATION = 0
UNFINISHED_MARKS = 0
MACHINE_PATHS = 0

CORE_PACKAGES = ("model", "wire", "timing", "storage", "raft", "metadata", "replication", "coordination")
BANNED_IN_CORE = {"time", "random", "asyncio", "socket", "os"}
PROCESS_ENTRIES = {"storage/cleaner_process.py"}
"""Programs of their own inside a core package: they wire ports, as the server does."""

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "tidemill"
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".txt", ".cfg", ".java", ".go", ""}
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$])/(?:home|root|Users|work|mnt)/[\w.]+")


class Function(NamedTuple):
    lines: int
    name: str
    has_return_annotation: bool


@cache
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


@cache
def functions() -> list[Function]:
    return [
        Function(
            node.end_lineno - node.lineno + 1, f"{path.relative_to(ROOT)}:{node.name}", bool(node.returns)
        )
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]


@cache
def repository_texts() -> dict[Path, str]:
    """Every text file that is, or is about to be, in the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    paths = [ROOT / name for name in listed if name and Path(name).suffix in TEXT_SUFFIXES]
    return {path: path.read_text(errors="replace") for path in paths if path.is_file()}


def matches(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in repository_texts().items()
        if path != Path(__file__).resolve()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_no_function_is_too_long() -> None:
    longest = sorted(functions(), reverse=True)[:5]
    assert longest[0].lines <= LONGEST_FUNCTION_LINES, longest


def test_functions_are_short() -> None:
    lengths = sorted(function.lines for function in functions())
    assert statistics.median(lengths) <= MEDIAN_FUNCTION_LINES
    assert lengths[int(0.95 * (len(lengths) - 1))] <= P95_FUNCTION_LINES


@pytest.mark.parametrize(
    ("folder", "limit"), [("src/tidemill", LONGEST_FILE_LINES), ("tests", LONGEST_TEST_FILE_LINES)]
)
def test_no_file_is_too_long(folder: str, limit: int) -> None:
    sizes = [(len(path.read_text().splitlines()), str(path)) for path in (ROOT / folder).rglob("*.py")]
    assert max(sizes)[0] <= limit, sorted(sizes, reverse=True)[:5]


def test_every_return_is_annotated() -> None:
    bare = [function.name for function in functions() if not function.has_return_annotation]
    assert len(bare) <= FUNCTIONS_WITHOUT_RETURN_ANNOTATION, bare


@pytest.mark.parametrize("package", CORE_PACKAGES)
def test_cores_touch_the_world_only_through_ports(package: str) -> None:
    found = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path, tree in modules().items()
        if path.is_relative_to(SOURCE / package) and str(path.relative_to(SOURCE)) not in PROCESS_ENTRIES
        for name in imported_modules(tree)
        if name in BANNED_IN_CORE
    ]
    assert not found


def test_nothing_is_left_unfinished() -> None:
    found = matches(UNFINISHED)
    assert len(found) <= UNFINISHED_MARKS, found


def test_no_path_of_a_machine() -> None:
    found = matches(MACHINE_PATH)
    assert len(found) <= MACHINE_PATHS, found
