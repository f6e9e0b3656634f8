//! Inference ranks.

use std::ffi::c_void;
use std::ops::BitOr;
use std::sync::Arc;

use crate::ffi;
use crate::rank::Rank;
use crate::region::{self, Held};
use crate::{Context, Deadline, Event, Lent, Manifest, Progress, RankOptions, Result, WorkerState};

/// How a worker changes from one version to the next, and which regions it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Two buffers of Waybill's; a commit shows the other one. No regions.
    #[default]
    Shadow = 1,
    /// The regions' memory stays where it is; a commit copies into it from a buffer of Waybill's.
    ShadowCopy = 2,
    /// The regions, or one buffer of Waybill's, are written directly; the engine is paused from
    /// before READY.
    InPlace = 3,
}

/// Which notices an update waits with for [`Notice::accept`](crate::Notice::accept) or
/// [`Notice::refuse`](crate::Notice::refuse); they are added up by `|`. All else is accepted at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask(u32);

impl Ask {
    /// None: everything is accepted.
    pub const NOTHING: Ask = Ask(0);
    /// `Event::Prepare`.
    pub const PREPARE: Ask = Ask(1);
    /// `Event::Arrived`.
    pub const ARRIVED: Ask = Ask(2);
    /// `Event::Commit`.
    pub const COMMIT: Ask = Ask(4);
}

impl BitOr for Ask {
    type Output = Ask;
    fn bitor(self, other: Ask) -> Ask {
        Ask(self.0 | other.0)
    }
}

/// The options of a worker. The defaults are fine.
#[derive(Clone, Default)]
pub struct WorkerOptions {
    /// None: the default one.
    pub context: Option<Context>,
    /// By default shadow.
    pub mode: Mode,
    /// By default nothing.
    pub ask: Ask,
    /// 0: 1.
    pub verify_threads: u32,
}

/// An inference rank. Dropping it closes it.
pub struct Worker {
    rank: Rank,
    held: Arc<Held>,
}

impl Worker {
    /// Makes a worker, which opens nothing before `join`. It takes one region for each region of the
    /// manifest, as large; or none, depending on the mode.
    pub fn new(
        rank: &RankOptions,
        manifest: &Manifest,
        regions: &[Lent],
        options: &WorkerOptions,
    ) -> Result<Worker> {
        let context = Context::or_default(&options.context)?;
        let rank = Rank::create(context, ffi::worker_destroy, |context, user| {
            let config = ffi::WorkerConfig {
                manifest: manifest.handle(),
                regions: &region::handles(regions),
                mode: options.mode as u32,
                ask: options.ask.0,
                verify_threads: options.verify_threads,
                queue: context.dispatcher().queue(),
            };
            let mut handle = 0;
            rank.with_config(user, |rank| {
                ffi::worker_create(context.handle(), rank, &config, &mut handle)
            })
            .into_result()?;
            Ok(handle)
        })?;
        let held = Arc::new(Held::by_worker(regions)?);
        Ok(Worker { rank, held })
    }

    /// Joins the job, as [`Trainer::join`](crate::Trainer::join) does.
    pub fn join(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into().to_ns();
        self.rank
            .call(|token| ffi::worker_join(self.rank.handle, deadline, token))
    }

    /// Waits for a notice. Returns None once the deadline passes (by default there is no deadline) or
    /// the worker is closed.
    pub fn next_event(&self, deadline: impl Into<Deadline>) -> Option<Event> {
        self.rank.next(deadline.into())
    }

    /// Returns the stream of notices, which ends when the worker is closed.
    #[cfg(feature = "stream")]
    pub fn events(&self) -> crate::Events {
        crate::Events::new(self.rank.inbox.clone())
    }

    /// Returns what is shown now.
    pub fn state(&self) -> Result<WorkerState> {
        let mut state = WorkerState::default();
        ffi::worker_state(self.rank.handle, &mut state).into_result()?;
        Ok(state)
    }

    /// Returns how far the latest update has come.
    pub fn progress(&self) -> Result<Progress> {
        let mut progress = Progress::default();
        ffi::worker_progress(self.rank.handle, &mut progress).into_result()?;
        Ok(progress)
    }

    /// Describes the worker, as [`Trainer::describe`](crate::Trainer::describe) does.
    pub fn describe(&self) -> Result<String> {
        let mut json = String::new();
        ffi::worker_describe(self.rank.handle, &mut json).into_result()?;
        Ok(json)
    }

    /// Holds what is shown. `holder` names the reader, for the error of an update that waits for the
    /// snapshot.
    pub fn snapshot(&self, holder: &str) -> Result<Snapshot> {
        let mut handle = 0;
        ffi::worker_snapshot(self.rank.handle, holder, &mut handle).into_result()?;
        Ok(Snapshot {
            handle,
            _held: self.held.clone(),
        })
    }

    /// The `waybill_worker_t*`, for code that calls the C ABI by itself; it stays this value's.
    pub fn as_raw(&self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.rank.handle as usize)
    }

    /// Leaves the job, after the calls before it. What is shown can still be read.
    pub fn leave(&self) -> Result<()> {
        self.rank
            .call(|token| ffi::worker_leave(self.rank.handle, token))
    }

    /// Leaves at once, as [`Trainer::close`](crate::Trainer::close) does. Snapshots live on.
    pub fn close(&self) {
        self.rank.close();
    }
}

/// A hold on the version that was shown: its bytes do not change until it is dropped, and an update
/// that needs the buffer waits.
pub struct Snapshot {
    handle: u64,
    _held: Arc<Held>, // The bytes may be those of the worker's regions.
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        ffi::snapshot_destroy(self.handle);
    }
}

impl Snapshot {
    /// Returns the version that is held.
    pub fn version(&self) -> u64 {
        ffi::snapshot_version(self.handle)
    }

    /// Returns the bytes of a region of the worker's manifest. `OutOfRange`: there is no such region.
    pub fn region(&self, region: u32) -> Result<&[u8]> {
        let (mut address, mut size) = (0, 0);
        ffi::snapshot_region(self.handle, region, &mut address, &mut size).into_result()?;
        if size == 0 {
            return Ok(&[]);
        }
        let data = std::ptr::with_exposed_provenance(address);
        // SAFETY: Nobody changes or frees them while the snapshot is there: the library its buffers,
        // `_held` the regions.
        Ok(unsafe { std::slice::from_raw_parts(data, size) })
    }
}
