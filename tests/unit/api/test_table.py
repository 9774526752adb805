"""The table of APIs against its messages, its handlers and its page in the docs."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tidemill.api.handlers import Handlers
from tidemill.api.table import APIS, Api, render

ROOT = Path(__file__).parents[3]
UNSTABLE = {"InitProducerId": 6}
"""Versions that Kafka declares and does not advertise."""


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_versions_are_those_of_the_schemas(api: Api) -> None:
    messages = api if api.messages else api._replace(messages=api.name.lower())
    for cls in (messages.request_class(), messages.response_class()):
        low, high = cls.VERSIONS
        if high == UNSTABLE.get(api.name):
            high -= 1
        assert (api.min_version, api.max_version, api.flexible_since) == (low, high, cls.FLEXIBLE)


def test_every_handler_exists() -> None:
    for api in APIS:
        family, method = api.handler.split(".")
        if family not in ("produce", "fetch"):
            returned = vars(Handlers)[family].func.__annotations__["return"]
            module = importlib.import_module(f"tidemill.api.{family}")
            assert callable(getattr(getattr(module, returned), method)), api.name


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "apis.md").read_text()
    assert page == render(), "run: python -m tidemill.api.table > docs/apis.md"
