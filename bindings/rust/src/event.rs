//! What happens to a rank.

use std::time::Duration;

use crate::ffi;
use crate::{Error, Result};

const PREPARE: u32 = 16;
const ARRIVED: u32 = 17;
const COMMIT: u32 = 18;
const ABORT: u32 = 19;
const OUTCOME: u32 = 20;

/// A notice. Those of a worker's update come in the order of the first four.
#[derive(Debug)]
pub enum Event {
    /// Pause what must be paused, then accept or refuse.
    Prepare(Notice),
    /// All of it is here and verified: accept or veto.
    Arrived(Notice),
    /// It is shown: run what comes after loading, then accept.
    Commit(Notice),
    /// It will not be shown. In place the engine stays paused.
    Abort {
        /// The one that is given up.
        version: u64,
        /// Why.
        error: Error,
    },
    /// Of a trainer: what became of a version in a group.
    Outcome {
        /// The one that was published.
        version: u64,
        /// The group's name.
        group: String,
        /// Whether all its workers show it, or why not.
        result: Result<()>,
    },
    /// The controller is gone, or has dismissed this rank.
    Ended {
        /// Why.
        error: Error,
    },
}

/// A step of an update on a worker. Where an answer is wanted the update waits for it, up to its
/// deadline; a notice that is dropped is not answered.
#[derive(Debug)]
pub struct Notice {
    kind: u32,
    version: u64,
    pause: Duration,
    update: u64, // 0 where no answer is wanted.
}

impl Drop for Notice {
    fn drop(&mut self) {
        ffi::update_destroy(self.update);
    }
}

impl Notice {
    /// The update's.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether the update waits for `accept` or `refuse`, as the worker's `ask` demanded.
    pub fn answer_wanted(&self) -> bool {
        self.update != 0
    }

    /// Of `Commit`: what copying took, in shadow-copy.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Lets the update go on. That nobody waits for it any more is no error; it is one where no
    /// answer is wanted, or where there was one.
    pub fn accept(&self) -> Result<()> {
        ffi::update_accept(self.update, self.kind).into_result()
    }

    /// Refuses a `Prepare` or vetoes an `Arrived`: nobody of the group shows the version, and the
    /// reason reaches every trainer. A `Commit` cannot be refused.
    pub fn refuse(&self, reason: &str) -> Result<()> {
        ffi::update_refuse(self.update, self.kind, reason).into_result()
    }
}

impl Event {
    /// Of a notice, that is of an event without token.
    pub(crate) fn from_raw(raw: ffi::RawEvent) -> Event {
        let notice = Notice {
            kind: raw.kind,
            version: raw.version,
            pause: Duration::from_nanos(raw.pause_ns),
            update: raw.update,
        };
        let version = raw.version;
        let result = raw.status.into_result();
        match raw.kind {
            PREPARE => Event::Prepare(notice),
            ARRIVED => Event::Arrived(notice),
            COMMIT => Event::Commit(notice),
            OUTCOME => Event::Outcome {
                version,
                group: raw.group,
                result,
            },
            kind => {
                let error = result.err().unwrap_or_else(Error::none);
                match kind {
                    ABORT => Event::Abort { version, error },
                    _ => Event::Ended { error },
                }
            }
        }
    }
}
