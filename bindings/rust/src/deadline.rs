// SPDX-License-Identifier: Apache-2.0

//! When a call that waits gives up.

use std::time::{Duration, Instant};

use crate::ffi;

/// The monotonic clock that [`Progress`](crate::Progress) tells times by, in nanoseconds.
pub fn now_ns() -> i64 {
    unsafe { ffi::waybill_now_ns() }
}

/// A point in time; by default the one that the function documents. Functions take a `Duration`
/// from now, an `Instant`, or `Deadline::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Deadline {
        Deadline(Some(instant))
    }
}

impl From<Duration> for Deadline {
    /// One that is too far away to be counted is the default.
    fn from(duration: Duration) -> Deadline {
        Deadline(Instant::now().checked_add(duration))
    }
}

impl Deadline {
    pub(crate) fn instant(self) -> Option<Instant> {
        self.0
    }

    /// By the library's clock; 0 is the default.
    pub(crate) fn to_ns(self) -> i64 {
        let Some(deadline) = self.0 else { return 0 };
        let nanos = |d: Duration| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX);
        let now = Instant::now();
        let ahead = nanos(deadline.saturating_duration_since(now));
        let behind = nanos(now.saturating_duration_since(deadline));
        now_ns().saturating_add(ahead).saturating_sub(behind).max(1)
    }
}
