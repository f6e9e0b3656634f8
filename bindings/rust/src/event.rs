// SPDX-License-Identifier: Apache-2.0

//! What happens to a rank.

use std::time::Duration;

use crate::ffi::{self, c_text, Handle};
use crate::{Code, Error, Result};

/// A notice. Those of a worker's update come in the order of the first four.
#[derive(Debug)]
pub enum Event {
    /// Pause what must be paused, then accept or refuse.
    Prepare(Notice),
    /// All of it is here and verified: accept or veto. For a trainer that has published with
    /// `hold_commit`: so it is in every group that has not given the version up.
    Arrived(Notice),
    /// It is shown: run what comes after loading, then accept.
    Commit(Notice),
    /// The version will not be shown. In place the engine stays paused.
    Abort {
        /// The version that is given up.
        version: u64,
        /// Why it is given up.
        error: Error,
    },
    /// Tells a trainer what became of a version in a group.
    Outcome {
        /// The version that was published.
        version: u64,
        /// The group's name.
        group: String,
        /// Ok if all its workers show the version, otherwise why not.
        result: Result<()>,
        /// Every worker of the group showed the same bytes before. False also if that is not known:
        /// without digests, or if the plan has changed or a lane has died.
        unchanged: bool,
        /// The group has committed the version, also where `result` says that not all of its workers
        /// show it.
        committed: bool,
    },
    /// Tells a trainer that published with `hold_commit`, before `Arrived`, that every group has all of the
    /// version, verified, or has given it up. Workers that ask for `Arrived` have still to answer.
    Received {
        /// The version that was published.
        version: u64,
    },
    /// Tells a trainer that every group that a version was sent to has decided.
    Decided {
        /// The version that was published.
        version: u64,
        /// The first error of a group.
        result: Result<()>,
    },
    /// The controller is lost, and the rank tries to come back by itself. What is shown stays shown.
    Disconnected {
        /// How the controller was lost.
        error: Error,
    },
    /// The rank is back, and part of a group's term again.
    Reconnected,
    /// Tells a trainer that versions go to a group from now on. After joining and after
    /// `Reconnected`, each group that is here is told.
    GroupJoined {
        /// The group's name.
        group: String,
    },
    /// Tells a trainer that the last worker of a group has left or died.
    GroupLeft {
        /// The group's name.
        group: String,
    },
    /// Tells a trainer that a worker has left or died, while others of its group are here. Versions go
    /// to the group again when all its workers are here.
    WorkerLost {
        /// The name of the worker's group.
        group: String,
        /// Which worker it is, and how it was lost.
        error: Error,
    },
    /// Tells a worker, after `Commit`, that the version was published before: this group had missed
    /// it, and another group has lent it, or the trainers held it.
    CaughtUp {
        /// The version that is shown.
        version: u64,
    },
    /// The controller has dismissed this rank for good.
    Ended {
        /// Why the rank was dismissed.
        error: Error,
    },
}

/// A step of an update. If an answer is wanted, the update waits for it until its
/// deadline. Dropping a notice does not answer it.
#[derive(Debug)]
pub struct Notice {
    kind: u32,
    version: u64,
    pause: Duration,
    unchanged: bool,
    update: Handle<ffi::waybill_update_t>, // NULL if no answer is wanted.
}

impl Notice {
    /// Returns the update's version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns whether the update waits for `accept` or `refuse`, as the worker's `ask` demanded.
    pub fn answer_wanted(&self) -> bool {
        !self.update.is_null()
    }

    /// Returns how long a `Commit` copied, in shadow-copy.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Returns whether the bytes that a `Commit` shows are those that were shown before. Returns false
    /// also if that is not known: without digests, or if the plan has changed or a lane has died.
    pub fn unchanged(&self) -> bool {
        self.unchanged
    }

    /// Lets the update go on. It does nothing if the update was given up. It fails if no answer is
    /// wanted, or if there was one.
    pub fn accept(&self) -> Result<()> {
        ffi::check(|error| unsafe {
            ffi::waybill_update_accept(self.update.get(), self.kind, error)
        })
    }

    /// Refuses a `Prepare` or vetoes an `Arrived`: no worker of the group, or for a trainer's answer of
    /// any group, shows the version. In answer to a `Commit` it says that the version could not be put
    /// into use: it is shown all the same, and the group's outcome is an error. The reason reaches every
    /// trainer.
    pub fn refuse(&self, reason: &str) -> Result<()> {
        let reason = c_text(reason);
        ffi::check(|error| unsafe {
            ffi::waybill_update_refuse(self.update.get(), self.kind, reason.as_ptr(), error)
        })
    }
}

/// An event as it comes from a queue.
pub(crate) struct RawEvent {
    pub(crate) kind: u32,
    pub(crate) token: u64,
    pub(crate) user: u64,
    pub(crate) result: Result<()>,
    version: u64,
    pause: Duration,
    unchanged: bool,
    committed: bool,
    update: Handle<ffi::waybill_update_t>,
    group: String,
}

impl RawEvent {
    /// Waits for the next event. Returns None once the queue is destroyed.
    pub(crate) fn wait(queue: &Handle<ffi::waybill_queue_t>) -> Option<RawEvent> {
        let event = loop {
            match ffi::fill(|event, error| unsafe {
                ffi::waybill_queue_wait(queue.get(), 0, event, error)
            }) {
                Ok(event) => break event,
                Err(error) if error.code() == Code::DeadlineExceeded => continue,
                Err(_) => return None,
            }
        };
        Some(RawEvent::taken(event))
    }

    fn taken(event: ffi::waybill_event_t) -> RawEvent {
        // SAFETY: Whoever takes an event owns its objects.
        let (update, error, group) = unsafe {
            (
                Handle::from_raw(event.update),
                Handle::from_raw(event.error),
                Handle::from_raw(event.group),
            )
        };
        RawEvent {
            kind: event.kind,
            token: event.token,
            user: event.user,
            result: Error::check(event.status, &error),
            version: event.version,
            pause: Duration::from_nanos(event.pause_ns),
            unchanged: event.unchanged != 0,
            committed: event.committed != 0,
            update: match event.answer_wanted {
                0 => Handle::null(),
                _ => update,
            },
            group: group.text(),
        }
    }
}

impl Event {
    /// Converts an event without a token.
    pub(crate) fn from_raw(raw: RawEvent) -> Event {
        let notice = Notice {
            kind: raw.kind,
            version: raw.version,
            pause: raw.pause,
            unchanged: raw.unchanged,
            update: raw.update,
        };
        let version = raw.version;
        let result = raw.result;
        match raw.kind {
            ffi::WAYBILL_EVENT_PREPARE => Event::Prepare(notice),
            ffi::WAYBILL_EVENT_ARRIVED => Event::Arrived(notice),
            ffi::WAYBILL_EVENT_COMMIT => Event::Commit(notice),
            ffi::WAYBILL_EVENT_OUTCOME => Event::Outcome {
                version,
                group: raw.group,
                result,
                unchanged: raw.unchanged,
                committed: raw.committed,
            },
            ffi::WAYBILL_EVENT_DECIDED => Event::Decided { version, result },
            ffi::WAYBILL_EVENT_RECEIVED => Event::Received { version },
            ffi::WAYBILL_EVENT_RECONNECTED => Event::Reconnected,
            ffi::WAYBILL_EVENT_GROUP_JOINED => Event::GroupJoined { group: raw.group },
            ffi::WAYBILL_EVENT_GROUP_LEFT => Event::GroupLeft { group: raw.group },
            ffi::WAYBILL_EVENT_CAUGHT_UP => Event::CaughtUp { version },
            kind => {
                let error = result.err().unwrap_or_else(Error::none);
                match kind {
                    ffi::WAYBILL_EVENT_ABORT => Event::Abort { version, error },
                    ffi::WAYBILL_EVENT_DISCONNECTED => Event::Disconnected { error },
                    ffi::WAYBILL_EVENT_WORKER_LOST => Event::WorkerLost {
                        group: raw.group,
                        error,
                    },
                    _ => Event::Ended { error },
                }
            }
        }
    }
}
