"""Spark's own Kafka connector, to compare with and to continue from: an environment and its jars in `.cache/`.

The connector's newest release is for Spark 4.2, so the environment has pyspark 4.2.0 beside this project. Its jars
are named one by one, because their own lists of dependencies cannot all be resolved:

    from official_connector import connector_python, connector_jars
    subprocess.run([connector_python(), "job.py"], env={..., "CONNECTOR_JARS": connector_jars()})

Both are made once; as a program, this module does just that.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv

from kafka_jars import CACHE, ROOT, Missing, require

SPARK_VERSION = "4.2.0"
HOME = CACHE / f"spark-{SPARK_VERSION}"
COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:copy"
JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


def connector_jars() -> str:
    """The jars as `spark.jars` wants them: paths with commas between them."""
    folder = HOME / "jars"
    missing = [name for name in JARS if not (folder / _file_name(name)).exists()]
    for name in missing:
        command = [require("mvn"), "-q", "-B", COPY_GOAL, f"-Dartifact={name}", f"-DoutputDirectory={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Missing(f"Maven could not fetch {name}:\n{done.stdout.strip()[-2000:]}")
    return ",".join(str(folder / _file_name(name)) for name in JARS)


def _file_name(coordinates: str) -> str:
    _, name, version = coordinates.split(":")
    return f"{name}-{version}.jar"


def connector_python() -> str:
    """A Python with pyspark 4.2.0 and this project's own source and sink."""
    python = HOME / "environment" / "bin" / "python"
    marker = HOME / "environment" / "complete"
    if not marker.exists():
        shutil.rmtree(HOME / "environment", ignore_errors=True)
        venv.create(HOME / "environment", with_pip=True)
        wanted = [f"pyspark=={SPARK_VERSION}", "--editable", f"{ROOT}[spark]"]
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Missing(f"pip could not install pyspark {SPARK_VERSION}:\n{done.stderr.strip()[-2000:]}")
        marker.touch()
    return str(python)


if __name__ == "__main__":
    try:
        print(connector_python())
        print(connector_jars())
    except Missing as missing:
        sys.exit(str(missing))
