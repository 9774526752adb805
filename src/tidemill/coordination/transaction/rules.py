"""Who may do what to a transaction: the decisions of the coordinator, as functions of one state.

InitProducerId. A producer that names nobody takes over: the next epoch. One that names its id and epoch (it goes on
after an error) gets the next epoch only if it is the current one; if it is the one before, this is a repeated
request and the answer is repeated; otherwise somebody else has taken over, and it is fenced.

While a transaction is prepared, everybody who wants to change something is told to come back
(CONCURRENT_TRANSACTIONS), before anything else is looked at: the end of version 2 may have given the producer a new id
that the state takes over only when it is complete.

EndTxn, by state and by the epoch of the request: current, or one less, if the end of a version 2 transaction made the
current one of it (then the request repeats itself; else the current one is a successor's, who must not be disturbed):

    version 1         commit                  abort                    any other epoch
    Ongoing           PrepareCommit           PrepareAbort             PRODUCER_FENCED
    Prepare...        CONCURRENT_TRANSACTIONS CONCURRENT_TRANSACTIONS  PRODUCER_FENCED
    CompleteCommit    done                    INVALID_TXN_STATE        PRODUCER_FENCED
    CompleteAbort     INVALID_TXN_STATE       done                     PRODUCER_FENCED
    Empty             INVALID_TXN_STATE       INVALID_TXN_STATE        PRODUCER_FENCED

    version 2         commit, current  commit, repeated         abort, current  abort, repeated
    Ongoing           PrepareCommit    PRODUCER_FENCED          PrepareAbort    PRODUCER_FENCED
    Prepare...        CONCURRENT_TRANSACTIONS, whoever asks
    CompleteCommit    INVALID_TXN_STATE done                    PrepareAbort    INVALID_TXN_STATE
    CompleteAbort     INVALID_TXN_STATE INVALID_TXN_STATE       PrepareAbort    done
    Empty             INVALID_TXN_STATE PRODUCER_FENCED         PrepareAbort    PRODUCER_FENCED

A difference to Kafka 4.3, where a producer that was fenced can still abort the open transaction of its successor by
asking for an epoch: here it is told that it is fenced, and nothing is aborted.
"""

from __future__ import annotations

import enum

from tidemill.coordination.transaction.state import (
    EPOCH_BUMP_SINCE,
    LAST_CLIENT_EPOCH,
    NO_EPOCH,
    PREPARED,
    ProducerIdentity,
    State,
    TransactionMetadata,
    is_exhausted,
)
from tidemill.model.errors import ErrorCode


class Claim(enum.Enum):
    """What a request for a producer id comes to."""

    ABORT_FIRST = "abort the open transaction, then try again"
    NEXT_EPOCH = "the next epoch"
    NEW_PRODUCER_ID = "epochs are used up: a new id"
    REPEAT = "answer as before"


def claim(
    metadata: TransactionMetadata, expected: ProducerIdentity | None, last_epoch: int
) -> Claim | ErrorCode:
    """Judge InitProducerId; `last_epoch` is the epoch that the current one was made from, or -1."""
    if metadata.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if expected is not None and not _names_this_producer(metadata, expected):
        return ErrorCode.PRODUCER_FENCED
    epoch = metadata.producer_epoch
    if expected is None or epoch in (NO_EPOCH, expected.epoch):
        if metadata.state is State.ONGOING:
            return Claim.ABORT_FIRST
        return Claim.NEW_PRODUCER_ID if is_exhausted(epoch) else Claim.NEXT_EPOCH
    if expected.epoch == last_epoch and metadata.state is not State.ONGOING:
        return Claim.REPEAT
    return ErrorCode.PRODUCER_FENCED


def _names_this_producer(metadata: TransactionMetadata, expected: ProducerIdentity) -> bool:
    """Its id, or the id before if its epochs were used up; a state without epoch belongs to whoever asks."""
    if metadata.producer_epoch == NO_EPOCH or expected.producer_id == metadata.producer_id:
        return True
    return expected.producer_id == metadata.previous_producer_id and is_exhausted(expected.epoch)


def epoch_before(metadata: TransactionMetadata) -> int:
    """The epoch that the end of a version 2 transaction replaced, or -1 if this state is not one."""
    is_ended = metadata.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    if not is_ended or metadata.client_version < EPOCH_BUMP_SINCE:
        return NO_EPOCH
    return metadata.producer_epoch - 1 if metadata.producer_epoch else LAST_CLIENT_EPOCH


def check_member(metadata: TransactionMetadata | None, identity: ProducerIdentity) -> ErrorCode:
    """Whether this producer may write to the partitions that it added."""
    if metadata is None or metadata.producer_id != identity.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if metadata.producer_epoch != identity.epoch:
        return ErrorCode.PRODUCER_FENCED
    if metadata.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def check_adding(metadata: TransactionMetadata | None, identity: ProducerIdentity) -> ErrorCode:
    """Whether this producer may add partitions."""
    if metadata is not None and metadata.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return check_member(metadata, identity)


class Ending(enum.Enum):
    """What a request to end a transaction comes to."""

    PREPARE = "decide it"
    DONE = "it has ended just so: answer as before"


def ending(
    metadata: TransactionMetadata | None, identity: ProducerIdentity, commit: bool, client_version: int
) -> Ending | ErrorCode:
    """Judge EndTxn by the tables above."""
    if metadata is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if client_version >= EPOCH_BUMP_SINCE:
        return _ending_with_bump(metadata, identity, commit)
    if metadata.producer_id != identity.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if metadata.producer_epoch != identity.epoch:
        return ErrorCode.PRODUCER_FENCED
    if metadata.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if metadata.state is State.ONGOING:
        return Ending.PREPARE
    return _repeated(metadata, commit)


def _ending_with_bump(
    metadata: TransactionMetadata, identity: ProducerIdentity, commit: bool
) -> Ending | ErrorCode:
    if metadata.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    is_id_replaced = _is_before_new_id(metadata, identity)
    if metadata.producer_id != identity.producer_id and not is_id_replaced:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    state = metadata.state
    is_current = not is_id_replaced and identity.epoch == metadata.producer_epoch
    is_bumped_by_end = metadata.client_version >= EPOCH_BUMP_SINCE
    is_repeated = is_id_replaced or (is_bumped_by_end and identity.epoch + 1 == metadata.producer_epoch)
    if is_current:
        is_possible = state is State.ONGOING or not commit
        return Ending.PREPARE if is_possible else ErrorCode.INVALID_TXN_STATE
    if is_repeated and state not in (State.ONGOING, State.EMPTY):
        return _repeated(metadata, commit)
    return ErrorCode.PRODUCER_FENCED


def _is_before_new_id(metadata: TransactionMetadata, identity: ProducerIdentity) -> bool:
    """The request of a producer whose last epoch was used up by this very end: it has a new id since."""
    is_new = metadata.producer_epoch == 0 and metadata.previous_producer_id == identity.producer_id
    return is_new and identity.epoch == LAST_CLIENT_EPOCH and identity.producer_id != metadata.producer_id


def _repeated(metadata: TransactionMetadata, commit: bool) -> Ending | ErrorCode:
    """The transaction has ended before: the same way, or the client contradicts itself."""
    if metadata.state is State.EMPTY or metadata.is_commit is not commit:
        return ErrorCode.INVALID_TXN_STATE
    return Ending.DONE
