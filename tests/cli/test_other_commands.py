"""`tidemill log`, `doctor`, `start`, and what all commands have in common."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import PROGRAM, environment, run_program

from tidemill.cli.errors import CommandError
from tidemill.cli.times import parse_time_ms
from tidemill.ports.machine import WANTED_MAPS, machine_checks
from tidemill.wire.batch import Record, build_batch


@pytest.mark.parametrize("command", [(), ("topics", "create"), ("log", "dump")])
def test_help_loads_no_client_and_no_rich(command: tuple[str, ...]) -> None:
    program = (
        "import sys, tidemill.cli.main as m\n"
        f"sys.argv = ['tidemill', *{command!r}, '--help']\n"
        "try:\n    m.main()\n"
        "finally:\n"
        "    heavy = [n for n in ('confluent_kafka', 'rich', 'uvloop', 'cramjam') if n in sys.modules]\n"
        "    assert not heavy, heavy\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Usage: ")


def test_version_and_nothing_at_all() -> None:
    assert run_program("--version").stdout.startswith("tidemill ")
    assert "Commands:" in run_program(code=2).stdout + run_program("-h").stdout


def test_nobody_answers() -> None:
    for command in (("topics", "list"), ("consume", "t"), ("produce", "t"), ("topics", "delete", "t", "-y")):
        started = time.monotonic()
        refused = run_program(*command, "--bootstrap", "127.0.0.1:1", code=2)
        assert refused.stderr == (
            "tidemill: no broker answers at 127.0.0.1:1 (connection refused): start one with `tidemill start`, "
            "or name another with --bootstrap HOST:PORT\n"
        )
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("address", ["nonsense", "host:", ":x"])
def test_an_address_that_is_none(address: str) -> None:
    assert "is not of the form HOST:PORT" in run_program("topics", "list", "-b", address, code=2).stderr


def test_start_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    command = [*PROGRAM, "start", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    broker = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(None)
    )
    with broker:
        assert broker.stdout is not None
        word, address = broker.stdout.readline().split()
        assert word == "ready"
        run_program("topics", "create", "greetings", bootstrap=address)
        run_program("produce", "greetings", stdin="hello", bootstrap=address)
        assert run_program("consume", "greetings", bootstrap=address).stdout == "hello\n"
        broker.terminate()
    assert broker.returncode == 0
    rows = run_program("log", "dump", str(tmp_path / "data"), "--records", "--json").stdout.splitlines()
    assert "hello" in [json.loads(row).get("value") for row in rows]
    assert ": 0 errors" in run_program("log", "verify", str(tmp_path / "data")).stderr


# -- log -----------------------------------------------------------------------------------------------


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    batches = [
        build_batch(
            [Record(n * 2 + i, 1_700_000_000_000, b"k%d" % i, b"\xff" if i else b"text") for i in range(2)]
        )
        for n in range(3)
    ]
    (directory / f"{0:020}.log").write_bytes(b"".join(bytes(batch) for batch in batches))
    return directory


def test_dump(partition: Path) -> None:
    batches = run_program("log", "dump", str(partition)).stdout.splitlines()
    assert len(batches) == 3
    assert all(line.startswith("batch  file=") for line in batches)
    rows = [
        json.loads(line)
        for line in run_program("log", "dump", str(partition), "-r", "--json").stdout.splitlines()
    ]
    assert [row["kind"] for row in rows] == ["batch", "record", "record"] * 3
    assert [row["value"] for row in rows[1:3]] == ["text", {"base64": "/w=="}]
    chosen = run_program("log", "dump", str(partition), "--from", "2", "--to", "4").stdout
    assert "base_offset=2 last_offset=3" in chosen and chosen.count("\n") == 1
    records = run_program("log", "dump", str(partition), "--records").stdout
    assert '  record  offset=0 timestamp=1700000000000 key="k0" value="text" headers=[]' in records


def test_verify(partition: Path) -> None:
    assert "1 partitions checked: 0 errors" in run_program("log", "verify", str(partition)).stderr
    log = partition / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    damaged = run_program("log", "verify", str(partition.parent), code=1)
    assert damaged.stdout.count("error: ") >= 1
    findings = json.loads(run_program("log", "verify", str(partition), "--json", code=1).stdout)
    assert "error" in {finding["severity"] for finding in findings}


def test_a_path_without_a_log(tmp_path: Path) -> None:
    for command in ("dump", "verify"):
        for path in (tmp_path / "none", tmp_path):
            refused = run_program("log", command, str(path), code=2)
            assert refused.stderr.startswith(f"tidemill: {path}")
            assert refused.stderr.count("\n") == 1


# -- doctor and times ----------------------------------------------------------------------------------


def test_doctor_names_the_command_for_each_limit_that_falls_short() -> None:
    checks = machine_checks()
    code = 0 if all(check.is_good for check in checks) else 1
    told = run_program("doctor", code=code).stdout
    for check in checks:
        assert check.name in told
        assert check.is_good or check.remedy in told
    assert [row["name"] for row in json.loads(run_program("doctor", "--json", code=code).stdout)] == [
        check.name for check in checks
    ]


def test_checks_follow_the_kernel_and_leave_out_what_is_not_there(tmp_path: Path) -> None:
    assert [check.name for check in machine_checks(tmp_path)] == ["open files (nofile)"]
    (tmp_path / "max_map_count").write_text("65530\n")
    (tmp_path / "swappiness").write_text("1\n")
    maps, _, swappiness = machine_checks(tmp_path)
    assert (maps.found, maps.is_good, swappiness.is_good) == (65_530, False, True)
    assert maps.remedy == f"sudo sysctl -w vm.max_map_count={WANTED_MAPS}"
    (tmp_path / "max_map_count").write_text(str(WANTED_MAPS))
    assert machine_checks(tmp_path)[0].is_good


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("10m", 400_000),
        ("30 s ago", 970_000),
        ("1w", 0),
        ("1970-01-01T00:10:00+00:00", 600_000),
        ("1970-01-01T01:00:00.250Z", 3_600_250),
    ],
)
def test_times(text: str, expected_ms: int) -> None:
    assert parse_time_ms(text, now_ms=1_000_000) == expected_ms


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TZ", "UTC-2")
    time.tzset()
    try:
        assert parse_time_ms("1970-01-02T02:00") == 86_400_000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "soon", "10 minutes", "2026-13-01", "-5"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(CommandError, match="is no time"):
        parse_time_ms(text)
