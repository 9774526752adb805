"""Tidemill: a message queue that any Kafka client can talk to."""

__version__ = "0.1.0"
