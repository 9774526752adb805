"""From command line, properties file and defaults to one set of options; flag beats `--set` beats file."""

from __future__ import annotations

import dataclasses
import difflib
import pathlib

from tidemill.model.config_keys import InvalidConfig
from tidemill.model.configs import BROKER_CONFIGS, BrokerLayers, broker_value, validate_static
from tidemill.model.errors import TidemillError
from tidemill.model.properties import BadProperties, parse_properties

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_NODE_ID = 1
DEFAULT_DATA_DIRECTORY = "data"
UNSUPPORTED_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
CONTROLLER = "CONTROLLER"
LISTENER_PREFIX = "listener.name."
"""Settings of single listeners begin with their name, so no table has them."""


class StartError(TidemillError):
    """The broker cannot start, and the text says what to do about it."""


@dataclasses.dataclass(slots=True)
class StartOptions:
    """What the command line says; empty fields are filled from the file and the defaults."""

    data_dirs: list[str] = dataclasses.field(default_factory=list)
    listen: str | None = None
    advertise: str | None = None
    config_file: str | None = None
    settings: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerOptions:
    """What the broker starts with, checked."""

    data_directories: list[str]
    host: str
    port: int
    advertised_host: str
    advertised_port: int
    """0 stands for the port that the broker listens on."""
    node_id: int
    rack: str | None
    properties: dict[str, str]
    unknown_keys: list[str]


def resolve(start: StartOptions) -> BrokerOptions:
    """Check everything that can be checked before a file is touched."""
    properties = _read_file(start.config_file)
    chosen = _chosen(start.settings)
    properties |= chosen
    try:
        unknown = validate_static(properties)
    except InvalidConfig as error:
        raise StartError(f"{error.message}; correct it in --set or in the file") from error
    _refuse_unknown(set(unknown) & set(chosen))
    _refuse_false_safety(properties)
    layers = BrokerLayers(static=properties)
    host, port = _address(start.listen or _listener(properties.get("listeners")) or DEFAULT_LISTEN)
    advertised = start.advertise or _listener(properties.get("advertised.listeners"))
    advertised_host, advertised_port = _address(advertised) if advertised else (_reachable(host), 0)
    rack = broker_value("broker.rack", layers)
    node_id = _node_id(properties)
    directories = start.data_dirs or _data_directories(properties)
    properties["node.id"] = str(node_id)
    properties["log.dirs"] = ",".join(directories)
    properties["listeners"] = f"PLAINTEXT://{host}:{port}"
    return BrokerOptions(
        data_directories=directories,
        host=host,
        port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        node_id=node_id,
        rack=str(rack) if rack else None,
        properties=properties,
        unknown_keys=unknown,
    )


def _chosen(settings: list[str]) -> dict[str, str]:
    chosen = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or not name.strip():
            raise StartError(f"--set {setting!r} is not of the form key=value")
        chosen[name.strip()] = value.strip()
    return chosen


def _refuse_unknown(names: set[str]) -> None:
    """A name typed by hand that nobody knows is a slip; in a file it may be meant for another program."""
    for name in sorted(names):
        if not name.startswith(LISTENER_PREFIX):
            like = difflib.get_close_matches(name, BROKER_CONFIGS, 1)
            advice = f"is {like[0]} meant?" if like else "they are those of Kafka's broker configuration"
            raise StartError(f"--set {name}: no setting of a broker has this name; {advice}")


def _refuse_false_safety(properties: dict[str, str]) -> None:
    """What would be dangerous to pass over: protection that is not there, metadata that is not found."""
    if properties.get("authorizer.class.name", "").strip():
        raise StartError("authorizer.class.name is set, but access control is not supported: remove it")
    if properties.get("metadata.log.dir", "").strip():
        raise StartError("metadata.log.dir is not supported: the metadata lies in the first of log.dirs")
    protocols = dict(
        entry.strip().split(":", 1)
        for entry in properties.get("listener.security.protocol.map", "").split(",")
        if ":" in entry
    )
    for listener in properties.get("listeners", "").split(","):
        name = listener.strip().partition("://")[0]
        protocol = protocols.get(name, name).upper()
        if protocol in UNSUPPORTED_PROTOCOLS:
            raise StartError(
                f"the listener {listener.strip()} asks for {protocol}; only PLAINTEXT is supported"
            )


def _node_id(properties: dict[str, str]) -> int:
    name = "node.id" if "node.id" in properties else "broker.id"
    if name not in properties:
        return DEFAULT_NODE_ID
    node_id = int(properties[name]) if properties[name].lstrip("-").isdigit() else -1
    if node_id < 0:
        raise StartError(f"{name} must be a number from 0 on, not {properties[name]!r}")
    return node_id


def _read_file(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return dict(parse_properties(pathlib.Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise StartError(
            f"cannot read the configuration file {path} ({error.strerror}); name another with --config"
        ) from error
    except (BadProperties, ValueError) as error:
        raise StartError(f"the configuration file {path} is no properties file: {error}") from error


def _data_directories(properties: dict[str, str]) -> list[str]:
    text = properties.get("log.dirs") or properties.get("log.dir") or DEFAULT_DATA_DIRECTORY
    return [part.strip() for part in text.split(",") if part.strip()]


def _listener(listeners: str | None) -> str | None:
    """The client listener among Kafka's `NAME://host:port,...`."""
    for listener in (listeners or "").split(","):
        name, separator, address = listener.strip().partition("://")
        if separator and name.upper() != CONTROLLER:
            return address
    return None


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    host = host.strip("[]")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise StartError(f"{text!r} is not an address of the form HOST:PORT")
    return host or "0.0.0.0", int(port)


def _reachable(host: str) -> str:
    """What to advertise when nothing else is said: an address that the clients of this machine reach."""
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
