"""From the image's settings to each log's configuration: resolved once, shared by topics that set the same."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.model.config_keys import Value
from tidemill.model.configs import BrokerLayers, topic_values, with_overrides
from tidemill.storage.config import LogConfig, log_config_from


class TopicConfigs:
    def __init__(self, layers: BrokerLayers) -> None:
        self._inherited: Mapping[str, Value] = topic_values({}, layers)
        self._resolved: dict[frozenset[tuple[str, str]], LogConfig] = {}

    def resolve(self, overrides: Mapping[str, str]) -> LogConfig:
        key = frozenset(overrides.items())
        found = self._resolved.get(key)
        if found is None:
            found = self._resolved[key] = log_config_from(with_overrides(self._inherited, overrides))
        return found
