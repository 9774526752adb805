"""Assignments as values: what one has and another has not, and what both have together."""

from __future__ import annotations

from tidemill.coordination.group.assignor import Assignment

NO_PARTITIONS: frozenset[int] = frozenset()


def nonempty(assignment: Assignment) -> Assignment:
    return {topic_id: indexes for topic_id, indexes in assignment.items() if indexes}


def minus(left: Assignment, right: Assignment) -> Assignment:
    return nonempty(
        {topic_id: indexes - right.get(topic_id, NO_PARTITIONS) for topic_id, indexes in left.items()}
    )


def plus(left: Assignment, right: Assignment) -> Assignment:
    return nonempty(
        {
            topic_id: left.get(topic_id, NO_PARTITIONS) | right.get(topic_id, NO_PARTITIONS)
            for topic_id in left.keys() | right.keys()
        }
    )
