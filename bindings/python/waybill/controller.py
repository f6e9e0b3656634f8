# SPDX-License-Identifier: Apache-2.0
"""Controllers, which plan for a job and decide commits."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

from waybill import _waybill
from waybill.pump import deadline_ns
from waybill.runtime import context, read_json, token_or_default


class Controller:
    """A controller in this process; it serves until it is closed.

    listen        The address and port to listen on; port 0 takes a free port. Default:
                  "127.0.0.1:7070".
    job           The name of the job, which all its ranks give. Default: "waybill".
    token         The job's secret, of 16 bytes at least, or the key of a controller, or the file of
                  either as @FILE. It is never sent. Required beyond loopback. Default:
                  WAYBILL_TOKEN, or a secret that the processes of this user share on this host.
    state         The file that keeps decisions. Default: none; they are lost with this process.
    require       The groups that must be whole before a version is published. A group is whole when
                  every worker has joined and every lane works. A publish skips any other group that
                  is not whole; that group's outcome is Unavailable.
    join_timeout  How long a rank that joins may wait for the others of its group, in seconds.
                  Default: 120 s.

    >>> with Controller(listen="127.0.0.1:0", job="doc") as controller:
    ...     controller.status()["job"]
    'doc'
    """

    def __init__(
        self,
        # begin generated from capi/options.toml: parameters of controller
        listen: str = "",
        *,
        job: str = "",
        token: str | None = None,
        state: str = "",
        require: Sequence[str] = (),
        join_timeout: float | None = None,
        # end generated
    ) -> None:
        options = _waybill.ControllerOptions(
            # begin generated from capi/options.toml: arguments of controller
            listen=listen,
            job=job,
            token=token_or_default(token),
            state=state,
            required_groups=",".join(require),
            join_timeout_ns=0 if join_timeout is None else int(join_timeout * 1e9),
            # end generated
        )
        self._core = _waybill.Controller(context(), options)

    @property
    def address(self) -> str:
        """The address that ranks connect to, such as "127.0.0.1:40123"."""
        return self._core.address()

    def status(self) -> dict[str, Any]:
        """Returns what the job is doing: phase, versions, groups, ranks, lanes and NICs."""
        status: dict[str, Any] = read_json(self._core.status())
        return status

    def close(self) -> None:
        """Stops serving. It tells the ranks, and waits a second at most for them to hear it."""
        self._core.close()

    def __enter__(self) -> Controller:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class JobTensor(NamedTuple):
    """A tensor of a job, whole: `dtype` as safetensors names it, "BF16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def job_tensors(
    address: str, *, token: str | None = None, deadline: float | None = None
) -> list[JobTensor]:
    """Returns the tensors that a job's trainers declare, each once: what workers can hold.

    Waits until all trainers have said what they hold.

    address   As query() takes it.
    deadline  In seconds from now; None: 5.

    Raises DeadlineExceeded (names the trainers that are missing), Unavailable (nobody answers there)
    or Unauthenticated (its token is another one).
    """
    said = _waybill.job_tensors(context(), address, token_or_default(token), deadline_ns(deadline))
    return [
        JobTensor(tensor["name"], tensor["dtype"], tuple(tensor["shape"]))
        for tensor in read_json(said)["tensors"]
    ]


def query(
    address: str, *, token: str | None = None, deadline: float | None = None
) -> dict[str, Any]:
    """Asks a controller on any host for its job's status, as Controller.status() returns it.

    address   Address and port; of several controllers, all addresses, separated by commas.
    deadline  In seconds from now; None: 5.

    Raises Unavailable (nobody answers there) or Unauthenticated (its token is another one).
    """
    said = _waybill.query(context(), address, token_or_default(token), deadline_ns(deadline))
    status: dict[str, Any] = read_json(said)
    return status
