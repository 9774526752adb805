"""Property tests are judged by what they find, not by the clock: a busy machine must not fail them."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
