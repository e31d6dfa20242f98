"""`ApiError`: an answer that is an error, in the one shape that OpenAI's clients read.

Bodies are written here and nowhere else: no traceback, no text of the request, no key.
"""

import math

from rooflight.errors import RooflightError


class ApiError(RooflightError):
    """A status other than 200; `retry_after` in seconds, if the request may come again."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers: dict[str, str] = {}
        if retry_after is not None:
            # Rounded up: a client that waits so long is not sent away for the same reason.
            self.headers["Retry-After"] = str(max(1, min(3600, math.ceil(retry_after))))

    @property
    def body(self) -> dict[str, object]:
        kind = "server_error" if self.status >= 500 else _KINDS.get(self.status, _INVALID)
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


_INVALID = "invalid_request_error"
_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def invalid(param: str, message: str) -> ApiError:
    """A field of the request that cannot be."""
    return ApiError(400, "invalid_value", f"{param}: {message}", param=param)


def overloaded(message: str, *, retry_after: float) -> ApiError:
    return ApiError(429, "overloaded", message, retry_after=retry_after)


def unavailable(code: str, message: str) -> ApiError:
    """Nothing was begun: warming up, draining, or the engine is gone. Another may be asked."""
    return ApiError(503, code, message, retry_after=5)


def problem_of(error: ApiError | TimeoutError) -> ApiError:
    """A deadline that has passed is one, too."""
    if isinstance(error, ApiError):
        return error
    return ApiError(408, "deadline", "the deadline of this request has passed")
