# SPDX-License-Identifier: Apache-2.0
"""Waybill moves updated model weights from trainers to inference workers."""

from waybill._waybill import version
from waybill.controller import Controller, JobTensor, job_tensors, query
from waybill.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    Code,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Scope,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    WaybillError,
)
from waybill.events import (
    Abort,
    Arrived,
    CaughtUp,
    Commit,
    Disconnected,
    Ended,
    Event,
    GroupJoined,
    GroupLeft,
    Prepare,
    Reconnected,
    WorkerLost,
)
from waybill.parts import Padding, Part
from waybill.planning import Layout, Manifest, Plan, Summary
from waybill.pump import Milestone
from waybill.runtime import describe
from waybill.snapshot import Snapshot
from waybill.trainer import Publish, Trainer
from waybill.worker import State, Worker

__all__ = [
    "Abort",
    "Aborted",
    "AlreadyExists",
    "Arrived",
    "Cancelled",
    "CaughtUp",
    "Code",
    "Commit",
    "Controller",
    "DataLoss",
    "DeadlineExceeded",
    "Disconnected",
    "Ended",
    "Event",
    "FailedPrecondition",
    "GroupJoined",
    "GroupLeft",
    "Internal",
    "InvalidArgument",
    "JobTensor",
    "Layout",
    "Manifest",
    "Milestone",
    "NotFound",
    "OutOfRange",
    "Padding",
    "Part",
    "PermissionDenied",
    "Plan",
    "Prepare",
    "Publish",
    "Reconnected",
    "ResourceExhausted",
    "Scope",
    "Snapshot",
    "State",
    "Summary",
    "Trainer",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "WaybillError",
    "Worker",
    "WorkerLost",
    "describe",
    "job_tensors",
    "query",
    "version",
]
__version__ = version()
