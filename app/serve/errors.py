"""ApiError: what went wrong, as OpenAI's clients are told it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

TYPES = {HTTPStatus.BAD_REQUEST: "BadRequestError", HTTPStatus.NOT_FOUND: "NotFoundError"}
"""vLLM's names; of any other status it is the usual phrase."""


class ApiError(Exception):
    """A request that is answered with an error. `param` is the parameter that it is about, if it is about one."""

    def __init__(self, status: HTTPStatus, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def body(self) -> dict[str, Any]:
        """OpenAI's object, with the status as its code (vLLM: `ErrorResponse`)."""
        kind = TYPES.get(self.status, self.status.phrase)
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.status.value}}
