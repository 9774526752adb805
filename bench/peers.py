"""The brokers that are measured, by name. The launchers are shared with the tests (`tests/support`)."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
# A start is measured as users have it, with compiled sources, whatever this environment says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".cache" / "pycache")

from broker_process import BrokerProcess  # noqa: E402
from kafka_jars import KAFKA_VERSION  # noqa: E402
from kafka_peer import KafkaPeer  # noqa: E402
from tidemill_peer import TidemillPeer  # noqa: E402

__all__ = ["KAFKA_VERSION", "ROOT", "BrokerProcess", "KafkaPeer", "TidemillPeer", "make_peer"]

KINDS: dict[str, type[BrokerProcess]] = {"tidemill": TidemillPeer, "kafka": KafkaPeer}

# The same for both. No group waits for more members before its first rebalance. Deleted topics give their page cache
# back soon, or the disk's writing back would spoil
# later turns; the cleaner looks often, so that the compaction workload need not wait for it.
SETTINGS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "log.segment.delete.delay.ms": 1000,
    "log.cleaner.backoff.ms": 200,
}


def make_peer(name: str) -> BrokerProcess:
    """A broker that is not started yet. `kafka` and `tidemill`; `kafka:2` is another one of the same kind."""
    peer = KINDS[name.partition(":")[0]](settings=SETTINGS)
    peer.name = name
    return peer


def raise_descriptor_limit() -> None:
    """Children inherit it: ten thousand partitions need many descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
