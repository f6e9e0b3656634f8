//! Ranks that hold new weights.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::ffi;
use crate::rank::{Call, Rank};
use crate::region::{self, Held};
use crate::{Context, Deadline, Event, Lent, Manifest, Progress, RankOptions, Result};

/// The options of a trainer. The defaults are fine.
#[derive(Clone, Default)]
pub struct TrainerOptions {
    /// None: the default one.
    pub context: Option<Context>,
    /// 0: 1.
    pub stage_threads: u32,
    /// The largest size of the staging ring; 0: 32 MiB.
    pub ring_bytes: u64,
}

/// The options of a publish. The defaults are fine.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublishOptions {
    /// By default 60 s from now.
    pub deadline: Deadline,
    /// If true, the publish lasts, and the memory is lent, until all groups have decided; otherwise
    /// until the version is sent.
    pub until_committed: bool,
    /// If true, what arrives is not verified.
    pub no_digests: bool,
    /// If true, the version fails if NaNs or infinities are quantised.
    pub fail_on_nonfinite: bool,
    /// The regions, some of which are memory of a device, are not read before what it was last
    /// recorded behind is done.
    pub after_event: Option<CudaEvent>,
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
        Self(event.as_ptr() as usize)
    }
}

/// A rank that holds new weights. Its calls are carried out one after the other, in the order they
/// came in. Dropping it closes it.
pub struct Trainer {
    rank: Rank,
    held: Held,
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
        let rank = Rank::create(context, ffi::trainer_destroy, |context, user| {
            let config = ffi::TrainerConfig {
                manifest: manifest.handle(),
                regions: &region::handles(regions),
                stage_threads: options.stage_threads,
                ring_bytes: options.ring_bytes,
                queue: context.dispatcher().queue(),
            };
            let mut handle = 0;
            rank.with_config(user, |rank| {
                ffi::trainer_create(context.handle(), rank, &config, &mut handle)
            })
            .into_result()?;
            Ok(handle)
        })?;
        let held = Held::by_trainer(regions)?;
        Ok(Trainer { rank, held })
    }

    /// Joins the job, and returns when all ranks are there and every lane carries. By default it
    /// waits for 120 s.
    pub fn join(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into().to_ns();
        self.rank
            .call(|token| ffi::trainer_join(self.rank.handle, deadline, token))
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
        let config = ffi::PublishConfig {
            version,
            deadline_ns: options.deadline.to_ns(),
            until_committed: options.until_committed,
            no_digests: options.no_digests,
            fail_on_nonfinite: options.fail_on_nonfinite,
            after_event: options.after_event.map_or(0, |event| event.0),
        };
        let mut handle = 0;
        let call = self
            .rank
            .inbox
            .start(Some(self.held.by_publish()?), |token| {
                ffi::trainer_publish(self.rank.handle, &config, token, &mut handle)
            })?;
        Ok(Update {
            version,
            handle,
            call,
        })
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
        let mut progress = Progress::default();
        ffi::trainer_progress(self.rank.handle, &mut progress).into_result()?;
        Ok(progress)
    }

    /// Returns what was chosen and why, as JSON: identity, epoch, lanes with their paths, NICs, counters.
    pub fn describe(&self) -> Result<String> {
        let mut json = String::new();
        ffi::trainer_describe(self.rank.handle, &mut json).into_result()?;
        Ok(json)
    }

    /// The `waybill_trainer_t*`, for code that calls the C ABI by itself; it stays this value's.
    pub fn as_raw(&self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.rank.handle as usize)
    }

    /// Leaves the job, after the calls before it.
    pub fn leave(&self) -> Result<()> {
        self.rank
            .call(|token| ffi::trainer_leave(self.rank.handle, token))
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
    handle: u64,
    call: Arc<Call>,
}

impl Drop for Update {
    fn drop(&mut self) {
        self.cancel();
        ffi::update_destroy(self.handle);
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

    /// Gives the update up, unless it has ended; it ends soon.
    pub fn cancel(&self) {
        // It fails if there is nothing to give up any more.
        let _ = ffi::update_cancel(self.handle);
    }
}
