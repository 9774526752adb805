"""The file `quorum-state`: who leads the metadata log in which epoch, as this node last knew it.

It is Kafka's file, in both of its versions. Version 0 belongs to a fixed set of voters, version 1 to a log
that keeps its voters in control records (`kraft.version` 1):

    {"clusterId":"","leaderId":1,"leaderEpoch":4,"votedId":-1,"appliedOffset":0,
     "currentVoters":[{"voterId":1}],"data_version":0}

    {"leaderId":1,"leaderEpoch":4,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}

The epoch must be on the disk before anything is appended under it, or a crash could let two different
histories share one epoch.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tidemill.model.errors import CorruptLog
from tidemill.model.ids import ZERO_UUID, uuid_text
from tidemill.ports.files import Files

FILE_NAME = "quorum-state"
NOBODY = -1


@dataclasses.dataclass(frozen=True, slots=True)
class QuorumState:
    leader_id: int = NOBODY
    leader_epoch: int = 0
    voters: tuple[int, ...] = ()
    data_version: int = 0

    def encode(self) -> bytes:
        content: dict[str, Any] = {"leaderId": self.leader_id, "leaderEpoch": self.leader_epoch}
        content["votedId"] = NOBODY
        if self.data_version == 0:
            content = {"clusterId": "", **content, "appliedOffset": 0}
            content["currentVoters"] = [{"voterId": voter} for voter in self.voters]
        else:
            content["votedDirectoryId"] = uuid_text(ZERO_UUID)
        content["data_version"] = self.data_version
        return json.dumps(content, separators=(",", ":")).encode()


def decode_quorum_state(data: bytes) -> QuorumState:
    try:
        content = json.loads(data)
        return QuorumState(
            leader_id=int(content["leaderId"]),
            leader_epoch=int(content["leaderEpoch"]),
            voters=tuple(int(voter["voterId"]) for voter in content.get("currentVoters") or ()),
            data_version=int(content["data_version"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLog(f"the file {FILE_NAME} is damaged: {error}") from error


def read_quorum_state(files: Files, directory: str) -> QuorumState:
    """What the file says, or the state before the first election."""
    path = f"{directory}/{FILE_NAME}"
    return decode_quorum_state(files.read_all(path)) if files.exists(path) else QuorumState()


def write_quorum_state(files: Files, directory: str, state: QuorumState) -> None:
    files.write_atomic(f"{directory}/{FILE_NAME}", state.encode())
