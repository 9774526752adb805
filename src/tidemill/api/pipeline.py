"""The one way that every request takes: header, version, decoding, handler, errors, encoding.

Produce, Fetch and ShareFetch are coded by hand and may answer on the spot or from purgatory; all others are decoded by
their schema, answered and encoded again. Most are answered by a coroutine. Members of groups come by the hundred and
wait for each other, so their requests are answered by a callback: who waits costs no task, and is answered in the
moment in which the group is ready. What a handler raises becomes the error of the response:

    ApiError             its code and text
    MalformedMessage     the connection is closed (there is nothing to answer to)
    anything else        UNKNOWN_SERVER_ERROR, with the traceback in the log
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from tidemill.api.context import ANONYMOUS, RequestContext, ResponseSlot
from tidemill.api.handlers import Handlers
from tidemill.api.table import API_BY_KEY, API_VERSIONS, FETCH, PRODUCE, SHARE_FETCH, Api
from tidemill.model.errors import ApiError, ErrorCode, MalformedMessage
from tidemill.wire.frames import Response, frame_message, read_client_id, read_fixed_header
from tidemill.wire.schema import Message, decode_from

logger = logging.getLogger(__name__)

LISTENER = "PLAINTEXT"
ASSUMED_VERSION = 0
"""What ApiVersions is answered in when the asked version is unknown: every client reads it."""

ByHand = Callable[[RequestContext, memoryview, int, ResponseSlot], Coroutine[Any, Any, None] | None]
Respond = Callable[[Message | ApiError], None]
Handler = Callable[[RequestContext, Any], Awaitable[Message]]
CallbackHandler = Callable[[RequestContext, Any, Respond], None]


class _Route(NamedTuple):
    """What is known of an API in one version before a request comes."""

    api: Api
    is_flexible: bool
    """The header of requests; that of an answer to ApiVersions is not."""
    by_hand: ByHand | None
    request_class: type[Message]
    handler: Any
    """A `CallbackHandler` if the table says so, else a `Handler`."""
    on_failure: Callable[[RequestContext, Any, ApiError], Message] | None
    """What a handler `name` answers by callback when it failed, if there is a `name_failed` beside it."""


def _framed(route: _Route, context: RequestContext, response: Message) -> Response:
    is_flexible = route.is_flexible and context.api_key != API_VERSIONS
    return frame_message(context.correlation_id, is_flexible, response, context.version)


class Pipeline:
    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._by_hand: dict[int, ByHand] = {
            PRODUCE: handlers.produce.handle,
            FETCH: handlers.fetch.handle,
            SHARE_FETCH: self._share_fetch,
        }
        self._routes: dict[tuple[int, int], _Route] = {}
        """By API and version, as far as they have been asked for."""
        self.request_counts: collections.Counter[int] = collections.Counter()

    def handle(
        self, frame: memoryview, peer_address: str, slot: ResponseSlot
    ) -> Coroutine[Any, Any, None] | None:
        """Answer now, later, or by the coroutine that is returned."""
        api_key, version, correlation_id, client_length = read_fixed_header(frame)
        route = self._routes.get((api_key, version)) or self._add_route(api_key, version)
        if route is None:
            self._refuse_version(API_BY_KEY[api_key], version, correlation_id, slot)
            return None
        client_id, body_start = read_client_id(frame, client_length, route.is_flexible)
        context = RequestContext(
            api_key, version, correlation_id, client_id, ANONYMOUS, LISTENER, peer_address
        )
        self.request_counts[api_key] += 1
        if route.by_hand is not None:
            return route.by_hand(context, frame, body_start, slot)
        request, _ = decode_from(route.request_class, version, bytes(frame), body_start)
        if route.api.is_callback:
            self._call(route, context, request, slot)
            return None
        return self._answer(route, context, request, slot)

    def _share_fetch(
        self, context: RequestContext, frame: memoryview, position: int, slot: ResponseSlot
    ) -> Coroutine[Any, Any, None] | None:
        """Loaded when the first share consumer comes."""
        return self._handlers.share_fetch.handle(context, frame, position, slot)

    async def _answer(
        self, route: _Route, context: RequestContext, request: Message, slot: ResponseSlot
    ) -> None:
        try:
            response = await route.handler(context, request)
        except ApiError as error:
            response = self._failure(route.api, error.code, error.message)
        except MalformedMessage:
            raise
        except Exception:
            logger.exception("%s v%d failed", route.api.name, context.version)
            response = self._failure(route.api, ErrorCode.UNKNOWN_SERVER_ERROR, "")
        slot.respond(_framed(route, context, response))

    def _call(self, route: _Route, context: RequestContext, request: Message, slot: ResponseSlot) -> None:
        def respond(reply: Message | ApiError) -> None:
            try:
                if isinstance(reply, ApiError):
                    reply = self._failure_of(route, context, request, reply)
                slot.respond_with_others(_framed(route, context, reply))
            except Exception:  # whoever calls has others to answer
                logger.exception("%s v%d cannot be answered", route.api.name, context.version)
                slot.close_connection()

        try:
            route.handler(context, request, respond)
        except ApiError as error:
            respond(error)
        except MalformedMessage:
            raise
        except Exception:
            logger.exception("%s v%d failed", route.api.name, context.version)
            respond(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        if not slot.is_ready:
            slot.hold_back_others()

    def _failure_of(
        self, route: _Route, context: RequestContext, request: Message, error: ApiError
    ) -> Message:
        """In the words of the handler, where it has some of its own for this request."""
        if route.on_failure is not None:
            return route.on_failure(context, request, error)
        return self._failure(route.api, error.code, error.message)

    def _add_route(self, api_key: int, version: int) -> _Route | None:
        """When it is first asked for, and with it messages and handler; None for a version that is not ours."""
        api = API_BY_KEY.get(api_key)
        if api is None:
            raise MalformedMessage(f"there is no API {api_key} here")
        if not api.supports(version):
            return None
        is_flexible, by_hand = version >= api.flexible_since, self._by_hand.get(api_key)
        if by_hand is not None:
            route = _Route(api, is_flexible, by_hand, Message, None, None)
        else:
            family, method = api.handler.split(".")
            handlers = getattr(self._handlers, family)
            on_failure = getattr(handlers, f"{method}_failed", None)
            route = _Route(api, is_flexible, None, api.request_class(), getattr(handlers, method), on_failure)
        self._routes[api_key, version] = route
        return route

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
        slot.respond(frame_message(correlation_id, False, response, ASSUMED_VERSION))
