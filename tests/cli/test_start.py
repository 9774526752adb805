"""`tidemill start`: what it refuses and how it says so, which setting wins, what it tells clients and the shell.

Refusals are looked at in a process of their own: only there standard error holds the log as well.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import PROGRAM, environment, run_program

from tidemill.cli.start import parser
from tidemill.server.options import StartError, StartOptions, resolve
from tidemill.testing import EmbeddedBroker, SubprocessBroker, WireClient
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest
from tidemill.wire.messages.metadata import MetadataRequest

FREE = "127.0.0.1:0"


def refusal(*arguments: str) -> str:
    """The one sentence of a start that fails, which is all that it prints."""
    command = [*PROGRAM, "start", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environment(None))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tidemill: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


@pytest.fixture(scope="module")
def directory_of_node_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node-one")
    with EmbeddedBroker(data_dir=directory):
        pass
    return directory


def test_a_port_in_use(tmp_path: Path, taken_port: int) -> None:
    told = refusal("-d", str(tmp_path), "-l", f"127.0.0.1:{taken_port}")
    assert f"port {taken_port} on 127.0.0.1 is in use" in told and "another with --listen" in told


def test_a_data_directory_that_cannot_be_written_to(tmp_path: Path) -> None:
    """A file in its place: permissions would not stop root, as whom tests may run."""
    (tmp_path / "file").write_text("no directory")
    told = refusal("-d", str(tmp_path / "file"), "-l", FREE)
    assert f"cannot write to the data directory {tmp_path / 'file'}" in told
    assert "another with --data-dir" in told


def test_a_data_directory_of_another_node(directory_of_node_one: Path) -> None:
    told = refusal("-d", str(directory_of_node_one), "-l", FREE, "--set", "node.id=7")
    assert str(directory_of_node_one) in told and "belongs to node 1, this is node 7" in told
    assert "--set node.id=1, or with another data directory" in told


def test_a_data_directory_in_use(directory_of_node_one: Path) -> None:
    with EmbeddedBroker(data_dir=directory_of_node_one):
        told = refusal("-d", str(directory_of_node_one), "-l", FREE)
    assert f"{directory_of_node_one} is used by another broker; stop it or choose another directory" in told


WRONG = {
    "a wrong value": (("-s", "log.retention.ms=soon"), "soon for configuration log.retention.ms", "--set"),
    "a name with a slip": (
        ("-s", "log.retention.hour=1"),
        "log.retention.hour:",
        "is log.retention.hours meant",
    ),
    "a name like no other": (("-s", "xyzzy=1"), "--set xyzzy:", "Kafka's broker configuration"),
    "no value": (("-s", "log.retention.ms"), "'log.retention.ms'", "key=value"),
    "no address": (("-l", "here"), "'here'", "HOST:PORT"),
    "no port": (("-l", "127.0.0.1:99999"), "'127.0.0.1:99999'", "HOST:PORT"),
    "nobody's address": (("-l", "192.0.2.1:0"), "192.0.2.1:0", "--listen"),
    "no node id": (("-s", "node.id=-3"), "node.id", "-3"),
    "no file": (("-c", "/nowhere/to/be/found"), "/nowhere/to/be/found", "--config"),
    "an unknown flag": (("--colour", "blue"), "--colour", "tidemill start --help"),
    "a flag without its value": (("--listen",), "--listen", "tidemill start --help"),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_sentence_says_what_is_wrong_and_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, what, advice = WRONG[name]
    monkeypatch.chdir(tmp_path)
    told = run_program("start", *arguments, code=2).stderr
    assert told.startswith("tidemill: ") and told.count("\n") == 1
    assert what in told and advice in told
    assert not os.listdir(tmp_path), "nothing was made before it was checked"


def test_a_file_that_is_no_properties_file(tmp_path: Path) -> None:
    for content in (b"a=1\nb=\\u12", b"a=\xff"):
        (tmp_path / "bad.properties").write_bytes(content)
        told = run_program("start", "-c", str(tmp_path / "bad.properties"), code=2).stderr
        assert "bad.properties is no properties file" in told and told.count("\n") == 1


# -- what is taken from where --------------------------------------------------------------------------

PROPERTIES = r"""# as Kafka's own tools write it
node.id : 5
log.dirs=/from/file,\
         /from/file/too
listeners = PLAINTEXT://127.0.0.5:5555
num.partitions	3
a.plugins.setting=kept for it
"""


def write(path: Path) -> str:
    path.write_text(PROPERTIES)
    return str(path)


def test_a_file_of_java_properties(tmp_path: Path) -> None:
    options = resolve(StartOptions(config_file=write(tmp_path / "server.properties")))
    assert (options.node_id, options.host, options.port) == (5, "127.0.0.5", 5555)
    assert options.data_directories == ["/from/file", "/from/file/too"]
    assert options.properties["num.partitions"] == "3"
    assert options.unknown_keys == ["a.plugins.setting"], "warned of, not refused: others may read the file"


def test_flag_beats_set_beats_file(tmp_path: Path) -> None:
    file = write(tmp_path / "server.properties")
    settings = ["num.partitions=4", "node.id=6", "log.dirs=/from/set", "listeners=PLAINTEXT://127.0.0.6:6666"]
    chosen = resolve(StartOptions(config_file=file, settings=settings))
    assert (chosen.node_id, chosen.properties["num.partitions"]) == (6, "4")
    assert (chosen.data_directories, chosen.host, chosen.port) == (["/from/set"], "127.0.0.6", 6666)
    flags = StartOptions(["/from/flag"], "127.0.0.7:7777", "told:7", file, settings)
    strongest = resolve(flags)
    assert (strongest.data_directories, strongest.host, strongest.port) == (["/from/flag"], "127.0.0.7", 7777)
    assert (strongest.advertised_host, strongest.advertised_port) == ("told", 7)


def test_defaults() -> None:
    options = resolve(StartOptions())
    assert (options.node_id, options.host, options.port) == (1, "127.0.0.1", 9092)


def test_a_listeners_own_setting_is_no_slip() -> None:
    name = "listener.name.outside.ssl.keystore.location"
    assert resolve(StartOptions(settings=[f"{name}=/x"])).unknown_keys == [name]
    with pytest.raises(StartError, match="no setting of a broker"):
        resolve(StartOptions(settings=["outside.ssl.keystore.location=/x"]))


def test_what_is_advertised_and_who_it_is(own_broker: Any) -> None:
    broker: SubprocessBroker = own_broker(advertise="broker.example:19092")
    assert broker.bootstrap == "broker.example:19092", "the line `ready` says where clients find it"
    with WireClient(listening_address(broker.pid)) as client:
        (told,) = client.call(MetadataRequest(topics=[])).brokers
        (described,) = client.call(DescribeClusterRequest()).brokers
    assert (told.node_id, told.host, told.port) == (1, "broker.example", 19_092)
    assert (described.broker_id, described.host, described.port) == (1, "broker.example", 19_092)


def listening_address(pid: int) -> str:
    """Where a process listens, as the kernel knows it: the free port that it took is nowhere else to be read."""
    inodes = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            return f"127.0.0.1:{int(fields[1].rpartition(':')[2], 16)}"
    raise LookupError(f"process {pid} listens nowhere")


# -- the shell ---------------------------------------------------------------------------------------------


def completion(instruction: str, words: str = "") -> str:
    """What the program tells a shell that asks it this."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_TIDEMILL_COMPLETE": instruction}
    program = "import sys; sys.argv[0] = 'tidemill'; from tidemill.cli.main import main; main()"
    command = [PROGRAM[0], "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(None) | asked, timeout=20, check=False
    )
    assert not done.stderr
    return done.stdout


def test_completion_knows_commands_and_the_options_of_start() -> None:
    commands = completion("complete_bash", "tidemill ").split()
    assert {"start", "topics", "produce", "consume"} <= set(commands)
    flags = {flag for action in parser()._actions for flag in action.option_strings if flag.startswith("--")}
    assert {"--data-dir", "--listen", "--set"} < flags
    assert set(completion("complete_bash", "tidemill start --").split()) == flags


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    script = completion(f"source_{shell}")
    assert "tidemill" in script.rstrip().splitlines()[-1]
    assert f"_TIDEMILL_COMPLETE=complete_{shell}" in script
