"""Decisions about configurations of topics, of groups, of one broker, and of all brokers (the empty broker name).

Two kinds of request exist. The incremental one says per key what to do:

    SET       this value                      APPEND    add these entries to a list
    DELETE    back to the inherited value     SUBTRACT  take these entries out of a list

The legacy one replaces everything a resource has by what it lists. In both, a resource is changed as a whole
or not at all, and it is the resulting configuration that is validated, not the change: keys that contradict
each other are refused in whatever order they come.

Limits: configurations of client metrics are carried in the image, but not changed here yet; the levels of
loggers live in the broker and are no metadata at all.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Mapping, Sequence

from tidemill.metadata.decisions import CLUSTER_DEFAULT, ControllerSettings, Decision, Outcome
from tidemill.metadata.image import ConfigResource, MetadataImage, ResourceType
from tidemill.metadata.records import ConfigRecord
from tidemill.metadata.topic_names import check_topic_name
from tidemill.model.config_keys import ConfigKey, ConfigType, InvalidConfig
from tidemill.model.configs import BROKER_CONFIGS, validate_broker, validate_topic
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.group_configs import GROUP_CONFIGS, validate_group
from tidemill.model.topic_configs import TOPIC_CONFIGS
from tidemill.wire.schema import Message

MAX_VALUE_LENGTH = 0x7FFF
_KEYS: dict[int, dict[str, ConfigKey]] = {
    ResourceType.TOPIC: TOPIC_CONFIGS,
    ResourceType.GROUP: GROUP_CONFIGS,
}


class Operation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigChange:
    name: str
    operation: int
    value: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceChange:
    resource: ConfigResource
    changes: tuple[ConfigChange, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceReplacement:
    resource: ConfigResource
    configs: tuple[tuple[str, str | None], ...]


ConfigOutcomes = dict[ConfigResource, Outcome]


def incremental_alter_configs(
    image: MetadataImage,
    settings: ControllerSettings,
    requests: Sequence[ResourceChange],
    *,
    validate_only: bool = False,
) -> Decision[ConfigOutcomes]:
    wanted = [(request.resource, request.changes) for request in requests]
    return _decide(image, settings, wanted, validate_only)


def alter_configs(
    image: MetadataImage,
    settings: ControllerSettings,
    requests: Sequence[ResourceReplacement],
    *,
    validate_only: bool = False,
) -> Decision[ConfigOutcomes]:
    """The legacy request: whatever is not listed goes back to its inherited value."""
    wanted = [(request.resource, _replacement(image, request)) for request in requests]
    return _decide(image, settings, wanted, validate_only)


def _replacement(image: MetadataImage, request: ResourceReplacement) -> tuple[ConfigChange, ...]:
    listed = {name for name, _ in request.configs}
    present = image.configs.get(request.resource, {})
    sets = tuple(ConfigChange(name, Operation.SET, value) for name, value in request.configs)
    return sets + tuple(ConfigChange(name, Operation.DELETE, None) for name in present if name not in listed)


def _decide(
    image: MetadataImage,
    settings: ControllerSettings,
    wanted: Sequence[tuple[ConfigResource, Sequence[ConfigChange]]],
    validate_only: bool,
) -> Decision[ConfigOutcomes]:
    times = Counter(resource for resource, _ in wanted)
    records: list[Message] = []
    outcomes: ConfigOutcomes = {}
    for resource, changes in wanted:
        try:
            if times[resource] > 1:
                raise _invalid_request("Each resource must appear at most once.")
            records.extend(_resource_records(image, settings, resource, changes))
            outcomes[resource] = Outcome()
        except ApiError as failure:
            outcomes[resource] = Outcome.of(failure)
    return Decision([] if validate_only else records, outcomes)


def _resource_records(
    image: MetadataImage,
    settings: ControllerSettings,
    resource: ConfigResource,
    changes: Sequence[ConfigChange],
) -> list[Message]:
    """The records of one resource, or a refusal of all its changes."""
    _check_resource(resource)
    _check_changes(changes)
    before = image.configs.get(resource, {})
    new_values = {change.name: _new_value(resource, before, change) for change in changes}
    after = {name: value for name, value in {**before, **new_values}.items() if value is not None}
    _validate(image, settings, resource, new_values, after)
    _check_existence(image, resource)
    is_broker = resource.type == ResourceType.BROKER
    return [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
        for name, value in new_values.items()
        if is_broker or before.get(name) != value
    ]


def _check_resource(resource: ConfigResource) -> None:
    if resource.type == ResourceType.TOPIC:
        if not resource.name:
            raise _invalid_request("Default topic resources are not allowed.")
        check_topic_name(resource.name)
    elif resource.type == ResourceType.GROUP:
        if not resource.name:
            raise _invalid_request("Default group resources are not allowed.")
    elif resource.type == ResourceType.BROKER:
        if resource.name != CLUSTER_DEFAULT and not (resource.name.isascii() and resource.name.isdigit()):
            raise _invalid_request("Unable to parse broker name as a base 10 number.")
    else:
        raise _invalid_request(f"Unknown resource type {_type_name(resource.type)}")


def _type_name(number: int) -> str:
    return ResourceType(number).name if number in set(ResourceType) else str(number)


def _check_changes(changes: Sequence[ConfigChange]) -> None:
    if len({change.name for change in changes}) < len(changes):
        raise _invalid_request("Error due to duplicate config keys")
    nulls = [
        change.name for change in changes if change.value is None and change.operation != Operation.DELETE
    ]
    if nulls:
        raise _invalid_request(f"Null value not supported for : {', '.join(nulls)}")
    for change in changes:
        if change.operation not in set(Operation):
            raise _invalid_request(f"Unknown config operation {change.operation} for {change.name}")


def _new_value(resource: ConfigResource, before: Mapping[str, str], change: ConfigChange) -> str | None:
    """The value after a change; None is back to the inherited one."""
    if change.operation == Operation.DELETE:
        return None
    value = change.value or ""
    if change.operation != Operation.SET:
        value = _changed_list(resource, before.get(change.name), change)
    if len(value) > MAX_VALUE_LENGTH:
        raise InvalidConfig(
            "The configuration value cannot be added because it exceeds the maximum value size of "
            f"{MAX_VALUE_LENGTH} bytes."
        )
    return value


def _changed_list(resource: ConfigResource, before: str | None, change: ConfigChange) -> str:
    key = _key(resource, change.name)
    if key is None or key.type is not ConfigType.LIST:
        verb = Operation(change.operation).name
        raise InvalidConfig(f"Can't {verb} to key {change.name} because its type is not LIST.")
    entries = _entries(key.text(key.default) if before is None else before)
    for entry in _entries(change.value):
        if change.operation == Operation.APPEND and entry not in entries:
            entries.append(entry)
        elif change.operation == Operation.SUBTRACT and entry in entries:
            entries.remove(entry)
    return ",".join(entries)


def _key(resource: ConfigResource, name: str) -> ConfigKey | None:
    return _KEYS.get(resource.type, BROKER_CONFIGS).get(name)


def _entries(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _validate(
    image: MetadataImage,
    settings: ControllerSettings,
    resource: ConfigResource,
    new_values: Mapping[str, str | None],
    after: Mapping[str, str],
) -> None:
    if resource.type == ResourceType.TOPIC:
        validate_topic(after, settings.layers(image))
    elif resource.type == ResourceType.GROUP:
        validate_group(new_values, after, settings.layers(image))
    else:
        validate_broker(new_values, for_all_brokers=resource.name == CLUSTER_DEFAULT)


def _check_existence(image: MetadataImage, resource: ConfigResource) -> None:
    if resource.type == ResourceType.TOPIC:
        if resource.name not in image.topics:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist."
            )
    elif resource.type == ResourceType.GROUP:
        return  # a group may be configured before its first member comes
    elif resource.name != CLUSTER_DEFAULT and int(resource.name) not in image.brokers:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {resource.name} found.")


def _invalid_request(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
