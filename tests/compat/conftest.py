"""Every compatibility test that names `client` runs with each of the three clients."""

from __future__ import annotations

import pytest
from clients import CLIENTS, Client


@pytest.fixture(params=CLIENTS, ids=[client.name for client in CLIENTS])
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen
