"""Tidemill with its compiled modules, as `TIDEMILL_NATIVE=1 pip install .` makes it, in `.cache/native`.

    python tests/support/native_build.py          # what `make bench` and `make interop` do before they start
    environment = {**os.environ, **native_environment()}

A broker or a client that is started with that environment runs the compiled modules; its libraries are those of the
Python that it is started with. The build is made anew when a source has changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from kafka_jars import CACHE, ROOT, Missing, install, install_packages

NATIVE = CACHE / "native"


def native_environment() -> dict[str, str]:
    """Builds it first where that is needed."""
    marker = NATIVE / "sources"
    fingerprint = _fingerprint()
    if not marker.exists() or marker.read_text() != fingerprint:
        _build()
        marker.write_text(fingerprint)
    return {"PYTHONPATH": str(NATIVE)}


def _fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in [ROOT / "setup.py", ROOT / "pyproject.toml", *sorted((ROOT / "src").rglob("*.py"))]:
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def _build() -> None:
    _make_machine_ready()
    print("compiling the modules that every request goes through (half a minute)", flush=True)
    sources = CACHE / "native-sources"  # a copy: nothing of another build may get in, and nothing may be left
    for folder in (NATIVE, sources):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--target", str(NATIVE), str(sources)],
        env={**os.environ, "TIDEMILL_NATIVE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    shutil.rmtree(sources)
    if done.returncode != 0:
        raise Missing(f"the modules could not be compiled:\n{done.stdout.strip()[-2000:]}")


def _make_machine_ready() -> None:
    install(["cc"])
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        install_packages([f"libpython{sys.version_info.major}.{sys.version_info.minor}-dev"])
    if not header.exists():
        raise Missing(f"{header} is needed to compile: install the development files of {sys.executable}")


if __name__ == "__main__":
    try:
        native_environment()
    except Missing as error:
        sys.exit(str(error))
