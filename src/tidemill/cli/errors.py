"""How commands fail: one sentence on stderr that says what to do next, and exit code 2. Never a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

EXIT_REFUSED = 2
"""Wrong usage, no connection, or the broker said no."""
EXIT_FOUND_SOMETHING = 1
"""The command worked, and what it looked at is not as it should be (doctor, log verify)."""


class CommandError(Exception):
    """The sentence that the user reads."""


def refusal(error: KafkaError, subject: str, bootstrap: str) -> CommandError:
    """What a broker's or librdkafka's error means for `subject`, such as "topic orders"."""
    name = str(error.name())
    if name in _NO_ANSWER:
        return no_answer(bootstrap, error.str())
    advice = _ADVICE.get(name)
    if advice is not None:
        return CommandError(advice.format(subject=subject, name=subject.rpartition(" ")[2]))
    return CommandError(f"{subject}: {_without_prefix(error.str())} ({name})")


def no_answer(bootstrap: str, detail: str) -> CommandError:
    return CommandError(
        f"no broker answers at {bootstrap} ({detail}): start one with `tidemill start`, "
        "or name another with --bootstrap HOST:PORT"
    )


_NO_ANSWER = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"}

_ADVICE = {
    "UNKNOWN_TOPIC_OR_PART": (
        "{subject} does not exist: `tidemill topics list` shows what is there, "
        "`tidemill topics create {name}` makes it"
    ),
    "_UNKNOWN_TOPIC": "{subject} does not exist: make it with `tidemill topics create {name}`",
    "_UNKNOWN_PARTITION": "{subject} has no such partition: `tidemill topics describe` shows which it has",
    "TOPIC_ALREADY_EXISTS": "{subject} exists already: take another name, or add --if-not-exists",
    "GROUP_ID_NOT_FOUND": "{subject} does not exist: `tidemill groups list` shows what is there",
    "NON_EMPTY_GROUP": "{subject} has members: stop them first (`tidemill groups describe {name}` shows who)",
    "UNKNOWN_MEMBER_ID": "{subject} has members: stop them first (`tidemill groups describe {name}` shows who)",
    "TOPIC_AUTHORIZATION_FAILED": "{subject}: you are not allowed to do this; ask for the right to it",
    "CLUSTER_AUTHORIZATION_FAILED": "you are not allowed to change this cluster; ask for the right to it",
    "MSG_SIZE_TOO_LARGE": (
        "{subject} refuses a message of this size: send smaller ones, or raise its limit with "
        "`tidemill topics alter {name} --set max.message.bytes=...`"
    ),
    "_MSG_TIMED_OUT": (
        "{subject} did not take a message in time: look whether the broker runs and has a leader for it "
        "(`tidemill topics describe {name}`)"
    ),
}


def _without_prefix(text: str) -> str:
    """librdkafka begins its own texts with a word for their origin."""
    return text.removeprefix("Broker: ").removeprefix("Local: ").rstrip(".")
