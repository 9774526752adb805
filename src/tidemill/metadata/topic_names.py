"""Which names a topic may have; the rules and the sentences are Kafka's."""

from __future__ import annotations

import re

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import CLUSTER_METADATA_TOPIC

MAX_NAME_LENGTH = 249
"""With the partition's number and the suffix of a deleted directory it still fits into 255 bytes."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION if no topic can have this name."""
    objection = _objection(name)
    if objection:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {objection}")


def _objection(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def check_creatable(name: str) -> None:
    """Also refuse the one name that belongs to the log of the cluster itself."""
    if name == CLUSTER_METADATA_TOPIC:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
        )
    check_topic_name(name)
