# SPDX-License-Identifier: Apache-2.0
"""What can go wrong: one exception class for each status of the C ABI.

>>> try:
...     Layout(model="no such model")
... except InvalidArgument as error:
...     error.code is Code.INVALID_ARGUMENT, error.scope is Scope.CALL
(True, True)
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """A status, with the number of absl::Status and gRPC."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Scope(IntEnum):
    """How far an error reaches."""

    CALL = 1  # This call failed; everything else goes on.
    UPDATE = 2  # This version will not be shown; the next may be.
    PEER = 3  # One peer is gone.


class WaybillError(Exception):
    """An error of Waybill. str() says what was being done, to what, what was found and what is allowed."""

    code: Code = Code.UNKNOWN
    scope: Scope = Scope.CALL


class Cancelled(WaybillError):
    """The call was given up: it was cancelled, or the rank left."""

    code = Code.CANCELLED


class InvalidArgument(WaybillError, ValueError):
    """The caller has to change what it asks for."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(WaybillError, TimeoutError):
    """The deadline has passed. The message says what was waited for."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(WaybillError, LookupError):
    """There is no such thing."""

    code = Code.NOT_FOUND


class AlreadyExists(WaybillError):
    """Another process has this rank, and still answers."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(WaybillError, PermissionError):
    """The caller is not allowed to do this."""

    code = Code.PERMISSION_DENIED


class ResourceExhausted(WaybillError):
    """There is not enough memory."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(WaybillError):
    """The state of the rank, the job or the version does not allow this."""

    code = Code.FAILED_PRECONDITION


class Aborted(WaybillError):
    """An update was given up."""

    code = Code.ABORTED


class OutOfRange(WaybillError, IndexError):
    """The index is out of range."""

    code = Code.OUT_OF_RANGE


class Unimplemented(WaybillError, NotImplementedError):
    """This release cannot do that."""

    code = Code.UNIMPLEMENTED


class Internal(WaybillError):
    """A bug in Waybill."""

    code = Code.INTERNAL


class Unavailable(WaybillError, ConnectionError):
    """A peer, the controller or a device cannot be reached, or a group is not whole."""

    code = Code.UNAVAILABLE


class DataLoss(WaybillError):
    """What arrived is not what was sent."""

    code = Code.DATA_LOSS


class Unauthenticated(WaybillError, PermissionError):
    """The controller has another token."""

    code = Code.UNAUTHENTICATED


_CLASSES = {
    cls.code: cls
    for cls in (
        Cancelled,
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        ResourceExhausted,
        FailedPrecondition,
        Aborted,
        OutOfRange,
        Unimplemented,
        Internal,
        Unavailable,
        DataLoss,
        Unauthenticated,
    )
}


def from_status(code: int, scope: int, message: str) -> WaybillError:
    """Returns the exception for a status of the C ABI, with its message unchanged."""
    error = _CLASSES.get(code, WaybillError)(message)  # type: ignore[call-overload]
    assert isinstance(error, WaybillError)
    error.scope = Scope(scope) if scope else Scope.CALL
    return error
