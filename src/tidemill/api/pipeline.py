"""The one way that every request takes: header, version, decoding, handler, errors, encoding.

Produce, Fetch and ShareFetch are coded by hand and may answer on the spot or from purgatory; all others are decoded by
their schema, answered by a coroutine and encoded again. What a handler raises becomes the error of the response:

    ApiError             its code and text
    MalformedMessage     the connection is closed (there is nothing to answer to)
    anything else        UNKNOWN_SERVER_ERROR, with the traceback in the log
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tidemill.api.context import ANONYMOUS, RequestContext, ResponseSlot
from tidemill.api.handlers import Handlers
from tidemill.api.table import API_BY_KEY, API_VERSIONS, FETCH, PRODUCE, SHARE_FETCH, Api
from tidemill.model.errors import ApiError, ErrorCode, MalformedMessage
from tidemill.wire.frames import frame_response, read_fixed_header, read_request_header
from tidemill.wire.schema import Message, decode, encode

logger = logging.getLogger(__name__)

LISTENER = "PLAINTEXT"
ASSUMED_VERSION = 0
"""What ApiVersions is answered in when the asked version is unknown: every client reads it."""

Handler = Callable[[RequestContext, Any], Awaitable[Message]]


class Pipeline:
    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._by_hand = {
            PRODUCE: handlers.produce.handle,
            FETCH: handlers.fetch.handle,
            SHARE_FETCH: self._share_fetch,
        }
        self._by_schema: dict[int, Handler] = {}
        self.request_counts: collections.Counter[int] = collections.Counter()

    def handle(
        self, frame: memoryview, peer_address: str, slot: ResponseSlot
    ) -> Coroutine[Any, Any, None] | None:
        """Answer now, later, or by the coroutine that is returned."""
        api_key, version, correlation_id = read_fixed_header(frame)
        api = API_BY_KEY.get(api_key)
        if api is None:
            raise MalformedMessage(f"there is no API {api_key} here")
        if not api.supports(version):
            self._refuse_version(api, version, correlation_id, slot)
            return None
        header = read_request_header(frame, version >= api.flexible_since)
        context = RequestContext(
            api_key, version, correlation_id, header.client_id, ANONYMOUS, LISTENER, peer_address
        )
        self.request_counts[api_key] += 1
        by_hand = self._by_hand.get(api_key)
        if by_hand is not None:
            return by_hand(context, frame, header.body_start, slot)
        request = decode(api.request_class(), version, bytes(frame), header.body_start)
        return self._answer(api, context, request, slot)

    def _share_fetch(
        self, context: RequestContext, frame: memoryview, position: int, slot: ResponseSlot
    ) -> Coroutine[Any, Any, None] | None:
        """Loaded when the first share consumer comes."""
        return self._handlers.share_fetch.handle(context, frame, position, slot)

    async def _answer(self, api: Api, context: RequestContext, request: Message, slot: ResponseSlot) -> None:
        try:
            response = await self._handler(api)(context, request)
        except ApiError as error:
            response = self._failure(api, error.code, error.message)
        except MalformedMessage:
            raise
        except Exception:
            logger.exception("%s v%d failed", api.name, context.version)
            response = self._failure(api, ErrorCode.UNKNOWN_SERVER_ERROR, "")
        body = encode(response, context.version)
        flexible_header = context.version >= api.flexible_since and api.key != API_VERSIONS
        slot.respond(frame_response(context.correlation_id, flexible_header, [body]))

    def _handler(self, api: Api) -> Handler:
        handler = self._by_schema.get(api.key)
        if handler is None:
            family, method = api.handler.split(".")
            handler = self._by_schema[api.key] = getattr(getattr(self._handlers, family), method)
        return handler

    def _failure(self, api: Api, code: ErrorCode, message: str) -> Message:
        """A response that is nothing but an error; an API without a place for one closes the connection."""
        response = api.response_class()()
        if not hasattr(response, "error_code"):
            raise MalformedMessage(f"{api.name} failed with {code.name}: {message}")
        response.error_code = code
        if hasattr(response, "error_message"):
            response.error_message = message or None
        return response

    def _refuse_version(self, api: Api, version: int, correlation_id: int, slot: ResponseSlot) -> None:
        if api.key != API_VERSIONS:
            raise MalformedMessage(
                f"{api.name} v{version} is not supported, only {api.min_version} to {api.max_version}"
            )
        response = self._handlers.versions.unsupported_version()
        slot.respond(frame_response(correlation_id, False, [encode(response, ASSUMED_VERSION)]))
