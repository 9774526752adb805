"""Where Apache Kafka's jars and Java come from: Maven coordinates, resolved once into `.cache/`.

`class_path()` answers a Java class path with the broker, its tools and a logging back end. The first call
asks Maven to copy the jars into `.cache/kafka-<version>/lib`; later calls only look at the marker file beside
them.

    python tests/support/kafka_jars.py            # what `make bench` and `make interop` do before they start
    from kafka_jars import class_path, java_command
    subprocess.run(java_command("kafka.tools.StorageTool", "random-uuid"))

Java 17 and Maven are taken from the machine. As a program (not as a library) this module installs Debian's
packages for what is missing when it may (root and `apt-get`), and otherwise says in one sentence what to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.4"
ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"

# The goal that copies jars, and the coordinates of what goes on the class path.
COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
COORDINATES = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-clients", KAFKA_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    ("org.apache.logging.log4j", "log4j-core", LOG4J_VERSION),
)

# Everything at WARN, and the broker's start-up line at INFO, because the launcher waits for it.
LOGGING = """\
<Configuration>
  <Appenders>
    <Console name="stderr" target="SYSTEM_ERR"><PatternLayout pattern="[%d] %p %m (%c)%n"/></Console>
  </Appenders>
  <Loggers>
    <Logger name="kafka.server.KafkaRaftServer" level="INFO"/>
    <Root level="WARN"><AppenderRef ref="stderr"/></Root>
  </Loggers>
</Configuration>
"""


class Missing(RuntimeError):
    """A program of the machine is missing; the text says which and what to do."""


def class_path() -> str:
    """The class path, resolving the jars first when this has not been done yet."""
    home = CACHE / f"kafka-{KAFKA_VERSION}"
    marker = home / "complete"
    if not marker.exists():
        _resolve(home)
        (home / "log4j2.xml").write_text(LOGGING)
        marker.touch()
    return f"{home}/lib/*"


def java_command(main_class: str, *arguments: str, options: tuple[str, ...] = ("-Xmx256M",)) -> list[str]:
    """The command line that runs one of Kafka's classes."""
    path = class_path()
    logging = f"-Dlog4j2.configurationFile={CACHE}/kafka-{KAFKA_VERSION}/log4j2.xml"
    return [require("java"), *options, logging, "-cp", path, main_class, *arguments]


def require(program: str) -> str:
    """The path of `program`, or Missing with the sentence for a person."""
    found = shutil.which(program)
    if found is None:
        raise Missing(
            f"{program} is needed and not installed; on Debian: apt-get install {PACKAGES[program]}"
        )
    return found


# program -> Debian's package that holds it
PACKAGES = {
    "java": "openjdk-17-jre-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "kcat": "kcat",
    "go": "golang",
    "cc": "build-essential",
}


def _resolve(home: Path) -> None:
    """Let Maven copy the jars into a folder of this process, then move it to its place (safe to run twice at once)."""
    home.mkdir(parents=True, exist_ok=True)
    scratch = home / f"resolve-{os.getpid()}"
    scratch.mkdir()
    (scratch / "pom.xml").write_text(_pom())
    command = [require("mvn"), "-q", "-B", "-f", f"{scratch}/pom.xml", COPY_GOAL]
    command += [f"-DoutputDirectory={scratch}/lib", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode != 0:
            raise Missing(
                f"Maven could not resolve Apache Kafka {KAFKA_VERSION}:\n{done.stdout.strip()[-2000:]}"
            )
        if not (home / "lib").exists():
            (scratch / "lib").rename(home / "lib")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _pom() -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in COORDINATES
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>tidemill</groupId><artifactId>peer</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


def install(programs: list[str]) -> None:
    """Install Debian's packages for those of `programs` that are missing, where that is possible."""
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return
    if not _may_install():
        require(missing[0])
    install_packages([PACKAGES[program] for program in missing])


def _may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_packages(packages: list[str]) -> None:
    """Debian's packages of these names."""
    if not _may_install():
        raise Missing(f"needed and not installed; on Debian: apt-get install {' '.join(packages)}")
    print(f"installing {', '.join(packages)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise Missing(f"apt-get {arguments[0]} failed:\n{done.stdout.strip()[-2000:]}")


def main(programs: list[str]) -> int:
    """Make the machine ready: Java, Maven (only when jars are missing), the `programs` named, the jars."""
    try:
        needed = [] if (CACHE / f"kafka-{KAFKA_VERSION}" / "complete").exists() else ["mvn"]
        install(["java", *needed, *programs])
        class_path()
    except Missing as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
