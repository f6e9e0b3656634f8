//! What happens to a rank.

use std::time::Duration;

use crate::ffi;
use crate::{Error, Result};

const PREPARE: u32 = 16;
const ARRIVED: u32 = 17;
const COMMIT: u32 = 18;
const ABORT: u32 = 19;
const OUTCOME: u32 = 20;
const DISCONNECTED: u32 = 22;
const RECONNECTED: u32 = 23;

/// A notice. Those of a worker's update come in the order of the first four.
#[derive(Debug)]
pub enum Event {
    /// Pause what must be paused, then accept or refuse.
    Prepare(Notice),
    /// All of it is here and verified: accept or veto.
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
    },
    /// The controller is lost, and the rank tries to come back by itself. What is shown stays shown.
    Disconnected {
        /// How the controller was lost.
        error: Error,
    },
    /// The rank is back, and the job is whole again.
    Reconnected,
    /// The controller has dismissed this rank for good.
    Ended {
        /// Why the rank was dismissed.
        error: Error,
    },
}

/// A step of an update on a worker. If an answer is wanted, the update waits for it until its
/// deadline. Dropping a notice does not answer it.
#[derive(Debug)]
pub struct Notice {
    kind: u32,
    version: u64,
    pause: Duration,
    update: u64, // 0 if no answer is wanted.
}

impl Drop for Notice {
    fn drop(&mut self) {
        ffi::update_destroy(self.update);
    }
}

impl Notice {
    /// Returns the update's version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns whether the update waits for `accept` or `refuse`, as the worker's `ask` demanded.
    pub fn answer_wanted(&self) -> bool {
        self.update != 0
    }

    /// Returns how long a `Commit` copied, in shadow-copy.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Lets the update go on. It does nothing if the update was given up. It fails if no answer is
    /// wanted, or if there was one.
    pub fn accept(&self) -> Result<()> {
        ffi::update_accept(self.update, self.kind).into_result()
    }

    /// Refuses a `Prepare` or vetoes an `Arrived`: no worker of the group shows the version, and the
    /// reason reaches every trainer. A `Commit` cannot be refused.
    pub fn refuse(&self, reason: &str) -> Result<()> {
        ffi::update_refuse(self.update, self.kind, reason).into_result()
    }
}

impl Event {
    /// Converts an event without a token.
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
            RECONNECTED => Event::Reconnected,
            kind => {
                let error = result.err().unwrap_or_else(Error::none);
                match kind {
                    ABORT => Event::Abort { version, error },
                    DISCONNECTED => Event::Disconnected { error },
                    _ => Event::Ended { error },
                }
            }
        }
    }
}
