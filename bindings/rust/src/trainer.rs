// SPDX-License-Identifier: Apache-2.0

//! Ranks that hold new weights.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use crate::ffi::{self, c_text, Handle, Texts};
use crate::rank::{Call, Outcomes, Rank};
use crate::region::{self, Held};
use crate::{
    Context, Deadline, Event, Lent, Manifest, Progress, PublishOptions, RankOptions, Result,
    TrainerOptions,
};

/// A trainer sends everything, or only the changes since the version before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Changes {
    /// Sends everything.
    #[default]
    Never = ffi::WAYBILL_CHANGES_NEVER,
    /// Sends changes to the groups that they reach sooner than everything does.
    Auto = ffi::WAYBILL_CHANGES_AUTO,
    /// Sends changes to all groups.
    Always = ffi::WAYBILL_CHANGES_ALWAYS,
}

impl Changes {
    pub(crate) fn to_c(self) -> u32 {
        self as u32
    }
}

/// A CUDA event of the caller's: a `CUevent`, which `cudaEvent_t` is too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaEvent(usize);

impl CudaEvent {
    /// # Safety
    ///
    /// The event exists until the publish that is given it has returned, or `publish_async` has;
    /// then it may be recorded again, or destroyed.
    #[must_use]
    pub unsafe fn from_raw(event: NonNull<c_void>) -> Self {
        Self(event.as_ptr().expose_provenance())
    }

    pub(crate) fn to_c(self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

/// A rank that holds new weights. Its calls are carried out one after the other, in the order they
/// came in. Dropping it closes it.
pub struct Trainer {
    rank: Rank<ffi::waybill_trainer_t>,
    held: Held,
    until_release: Mutex<Option<Held>>,
}

impl Trainer {
    /// Makes a trainer, which opens nothing before `join`. It takes one region for each region of the
    /// manifest, as large.
    pub fn new(
        rank: &RankOptions,
        manifest: &Manifest,
        regions: &[Lent],
        options: &TrainerOptions,
    ) -> Result<Trainer> {
        let context = Context::or_default(&options.context)?;
        let handles = region::handles(regions);
        let rank = Rank::create(context, |context, user| {
            let mut texts = Texts::default();
            let rank = rank.to_c(user, &mut texts);
            let mut c = ffi::waybill_trainer_options_t {
                rank: &rank,
                manifest: manifest.handle(),
                regions: ffi::begin(&handles),
                region_count: handles.len() as u32,
                queue: context.dispatcher().queue(),
                ..Default::default()
            };
            options.write_to(&mut c, &mut texts);
            ffi::make(|out, error| unsafe {
                ffi::waybill_trainer_create(context.handle(), &c, out, error)
            })
        })?;
        let held = Held::by_trainer(regions)?;
        Ok(Trainer {
            rank,
            held,
            until_release: Mutex::default(),
        })
    }

    /// Joins the job, and returns when all ranks are there and every lane carries. By default it
    /// waits for 120 s.
    pub fn join(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into().to_ns();
        self.rank.call(|token| {
            ffi::check(|error| unsafe {
                ffi::waybill_trainer_join(self.rank.handle.get(), deadline, token, error)
            })
        })
    }

    /// Sends a version; every trainer of the job calls it with the same one. Versions only grow.
    /// It returns when the regions may be written again, however it ends.
    ///
    /// A publish waits its turn within its own deadline: it begins once the version before it is
    /// decided. It also waits for a controller that is lost to come back.
    pub fn publish(&self, version: u64, options: &PublishOptions) -> Result<()> {
        self.publish_async(version, options)?.wait()
    }

    /// Publishes without waiting. [`Region::write`](crate::Region::write) waits until the publish has
    /// ended.
    pub fn publish_async(&self, version: u64, options: &PublishOptions) -> Result<Update> {
        let mut texts = Texts::default();
        let mut c = ffi::waybill_publish_options_t {
            version,
            ..Default::default()
        };
        options.write_to(&mut c, &mut texts);
        if options.hold {
            *self.until_release.lock().unwrap() = Some(self.held.by_publish()?);
        }
        let held = Some(self.held.by_publish()?);
        let outcomes = self.rank.inbox.follow(version);
        let (call, handle) = self.rank.inbox.start(held, |token| {
            // SAFETY: Whoever made the CudaEvent has promised that the event exists.
            ffi::make(|out, error| unsafe {
                ffi::waybill_trainer_publish(self.rank.handle.get(), &c, token, out, error)
            })
        })?;
        Ok(Update {
            version,
            handle,
            call,
            outcomes,
        })
    }

    /// Ends the hold of a version; the regions may be written again when it returns. It does nothing
    /// if no version is held. It ends within a second or so, also while the version is being sent.
    pub fn release(&self) -> Result<()> {
        self.rank.call(|token| {
            ffi::check(|error| unsafe {
                ffi::waybill_trainer_release(self.rank.handle.get(), token, error)
            })
        })?;
        *self.until_release.lock().unwrap() = None;
        Ok(())
    }

    /// Waits for a notice, such as the outcome of a version in a group. Returns None once the deadline
    /// passes (by default there is no deadline) or the trainer is closed.
    pub fn next_event(&self, deadline: impl Into<Deadline>) -> Option<Event> {
        self.rank.next(deadline.into())
    }

    /// The notices, until the trainer is closed.
    #[cfg(feature = "stream")]
    pub fn events(&self) -> crate::Events {
        crate::Events::new(self.rank.inbox.clone())
    }

    /// Returns how far the latest update has come.
    pub fn progress(&self) -> Result<Progress> {
        let c = ffi::fill(|out, error| unsafe {
            ffi::waybill_trainer_progress(self.rank.handle.get(), out, error)
        })?;
        Ok(Progress::from_c(&c))
    }

    /// Returns what was chosen and why, as JSON: identity, epoch, lanes with their paths, NICs, counters.
    pub fn describe(&self) -> Result<String> {
        ffi::make_text(|out, error| unsafe {
            ffi::waybill_trainer_describe(self.rank.handle.get(), out, error)
        })
    }

    /// The `waybill_trainer_t*`, for code that calls the C ABI by itself; it stays this value's.
    pub fn as_raw(&self) -> *mut c_void {
        self.rank.handle.get().cast()
    }

    /// Leaves the job, after the calls before it.
    pub fn leave(&self) -> Result<()> {
        self.rank.call(|token| {
            ffi::check(|error| unsafe {
                ffi::waybill_trainer_leave(self.rank.handle.get(), token, error)
            })
        })
    }

    /// Leaves at once: calls that are under way in other threads end, as `Cancelled`. It returns
    /// when nothing touches the regions any more, after a few seconds at most.
    pub fn close(&self) {
        self.rank.close();
    }
}

/// A version that is being published. Dropping it before it has ended gives it up.
#[must_use]
pub struct Update {
    version: u64,
    handle: Handle<ffi::waybill_update_t>,
    call: Arc<Call>,
    outcomes: Arc<Outcomes>,
}

impl Drop for Update {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Update {
    /// Returns the version that is being published.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Waits for the end.
    pub fn wait(self) -> Result<()> {
        self.call.wait_to_end()
    }

    /// Waits for the end until then. Returns None if the publish goes on.
    pub fn wait_until(&self, deadline: impl Into<Deadline>) -> Option<Result<()>> {
        self.call.wait(deadline.into().instant())
    }

    /// Returns, for each group that has decided, Ok if all its workers show the version, or why not.
    /// With [`PublishOptions::until_committed`] all groups have decided once the publish has ended.
    pub fn outcomes(&self) -> HashMap<String, Result<()>> {
        self.outcomes.lock().unwrap().clone()
    }

    /// Makes all groups keep what they show, unless a version that was published with `hold_commit` is
    /// decided; the reason reaches every trainer.
    pub fn abort(&self, reason: &str) -> Result<()> {
        let reason = c_text(reason);
        ffi::check(|error| unsafe {
            ffi::waybill_update_refuse(
                self.handle.get(),
                ffi::WAYBILL_EVENT_ARRIVED,
                reason.as_ptr(),
                error,
            )
        })
    }

    /// Gives the update up, unless it has ended; it ends soon.
    pub fn cancel(&self) {
        // It fails if there is nothing to give up any more.
        let _ = ffi::check(|error| unsafe { ffi::waybill_update_cancel(self.handle.get(), error) });
    }
}
