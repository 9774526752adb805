"""What a broker refuses to start with, because it would promise what is not there."""

from __future__ import annotations

import pytest

from tidemill.api.settings import BrokerSettings
from tidemill.model.configs import BrokerLayers
from tidemill.server.options import StartError, StartOptions, resolve


@pytest.mark.parametrize(
    "setting",
    [
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "metadata.log.dir=/elsewhere",
        "listeners=SSL://127.0.0.1:0",
        "listeners=PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:1",
    ],
)
def test_no_false_safety(setting: str) -> None:
    with pytest.raises(StartError):
        resolve(StartOptions(settings=[setting]))


def test_a_listener_whose_name_stands_for_a_protocol() -> None:
    mapped = "listener.security.protocol.map=OUTSIDE:{},CONTROLLER:PLAINTEXT"
    listeners = "listeners=OUTSIDE://127.0.0.1:9999,CONTROLLER://127.0.0.1:9998"
    with pytest.raises(StartError, match="SSL"):
        resolve(StartOptions(settings=[mapped.format("SSL"), listeners]))
    assert resolve(StartOptions(settings=[mapped.format("PLAINTEXT"), listeners])).port == 9999


def test_limits_of_single_addresses_and_cordoned_directories() -> None:
    static = {
        "max.connections.per.ip.overrides": "127.0.0.9:3, [::1]:4",
        "cordoned.log.dirs": "/disk2/",
        "log.dirs": "/disk1,/disk2",
    }
    settings = BrokerSettings.from_layers(BrokerLayers(static=static))
    assert settings.max_connections_of["127.0.0.9"] == 3 and settings.max_connections_of["::1"] == 4
    assert settings.cordoned_directories == {"/disk2"}
    everything = BrokerSettings.from_layers(BrokerLayers(static=static | {"cordoned.log.dirs": "*"}))
    assert everything.cordoned_directories == {"/disk1", "/disk2"}
