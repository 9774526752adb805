"""What a broker says of itself: the version range of each API, by a plain ApiVersions call.

api_ranges("127.0.0.1:9092")[0] == (0, 13)        # Produce
"""

from __future__ import annotations

from tidemill.testing import WireClient
from tidemill.wire.messages.api_versions import ApiVersionsRequest

ApiRanges = dict[int, tuple[int, int]]


def api_ranges(bootstrap: str) -> ApiRanges:
    """API key -> (lowest, highest version)."""
    with WireClient(bootstrap) as client:
        answer = client.call(
            ApiVersionsRequest(client_software_name="tidemill-interop", client_software_version="1")
        )
    assert answer.error_code == 0, f"ApiVersions answered error {answer.error_code}"
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
