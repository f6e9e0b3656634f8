// SPDX-License-Identifier: Apache-2.0

//! Inference ranks.

use std::ffi::c_void;
use std::ops::BitOr;
use std::ptr::null;
use std::slice;
use std::sync::Arc;

use crate::ffi::{self, c_text, Handle, Texts};
use crate::rank::Rank;
use crate::region::{self, Held};
use crate::{
    Code, Context, Deadline, Element, Error, Event, Lent, Manifest, Progress, RankOptions, Result,
    WorkerOptions,
};

/// How a worker changes from one version to the next, and which regions it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Two buffers of Waybill's; a commit shows the other one. No regions.
    #[default]
    Shadow = ffi::WAYBILL_MODE_SHADOW,
    /// The regions' memory stays where it is; a commit copies into it from a buffer of Waybill's. A
    /// thread that reads the memory while updates arrive holds a [`Snapshot`] for as long as it reads, or
    /// it may see parts of two versions: `let reading = worker.snapshot("inference")?;`
    ShadowCopy = ffi::WAYBILL_MODE_SHADOW_COPY,
    /// The regions, or one buffer of Waybill's, are written directly; the engine is paused from
    /// before READY.
    InPlace = ffi::WAYBILL_MODE_IN_PLACE,
}

impl Mode {
    pub(crate) fn to_c(self) -> u32 {
        self as u32
    }
}

/// Which notices an update waits with for [`Notice::accept`](crate::Notice::accept) or
/// [`Notice::refuse`](crate::Notice::refuse); they are added up by `|`. All else is accepted at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask(u32);

impl Ask {
    /// None: everything is accepted.
    pub const NOTHING: Ask = Ask(0);
    /// `Event::Prepare`.
    pub const PREPARE: Ask = Ask(ffi::WAYBILL_ASK_PREPARE);
    /// `Event::Arrived`.
    pub const ARRIVED: Ask = Ask(ffi::WAYBILL_ASK_ARRIVED);
    /// `Event::Commit`.
    pub const COMMIT: Ask = Ask(ffi::WAYBILL_ASK_COMMIT);

    pub(crate) fn to_c(self) -> u32 {
        self.0
    }
}

impl BitOr for Ask {
    type Output = Ask;
    fn bitor(self, other: Ask) -> Ask {
        Ask(self.0 | other.0)
    }
}

/// The state of a worker: what it shows, and what came late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerState {
    /// 0: none.
    pub shown_version: u64,
    /// It is part of the job.
    pub joined: bool,
    /// In place: written and not committed; nothing can be read.
    pub dirty: bool,
    /// It voted for a version and lost the controller: it shows the old version until it has
    /// heard the decision.
    pub in_doubt: bool,
    /// Another group lends the version that this one has missed.
    pub catching_up: bool,
    /// How many late words of abandoned updates have come.
    pub stragglers: u64,
    /// How many immediates have come twice.
    pub repeats: u64,
    /// How many buffers were fenced.
    pub renewals: u64,
    /// How many versions had the bytes that were shown before.
    pub unchanged_versions: u64,
    /// A version is shown, and it is all of the trainers' tensors: they have published it without
    /// `tensors` and `at_most_ppm`.
    pub exact: bool,
}

/// An inference rank. Dropping it closes it.
pub struct Worker {
    rank: Rank<ffi::waybill_worker_t>,
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
        let handles = region::handles(regions);
        let rank = Rank::create(context, |context, user| {
            let mut texts = Texts::default();
            let rank = rank.to_c(user, &mut texts);
            let mut c = ffi::waybill_worker_options_t {
                rank: &rank,
                manifest: manifest.handle(),
                regions: ffi::begin(&handles),
                region_count: handles.len() as u32,
                queue: context.dispatcher().queue(),
                ..Default::default()
            };
            options.write_to(&mut c, &mut texts);
            ffi::make(|out, error| unsafe {
                ffi::waybill_worker_create(context.handle(), &c, out, error)
            })
        })?;
        let held = Arc::new(Held::by_worker(regions)?);
        Ok(Worker { rank, held })
    }

    /// Joins the job, as [`Trainer::join`](crate::Trainer::join) does.
    pub fn join(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into().to_ns();
        self.rank.call(|token| {
            ffi::check(|error| unsafe {
                ffi::waybill_worker_join(self.rank.handle.get(), deadline, token, error)
            })
        })
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
        let c = ffi::fill(|out, error| unsafe {
            ffi::waybill_worker_state(self.rank.handle.get(), out, error)
        })?;
        Ok(WorkerState {
            shown_version: c.shown_version,
            joined: c.joined != 0,
            dirty: c.dirty != 0,
            in_doubt: c.in_doubt != 0,
            catching_up: c.catching_up != 0,
            stragglers: c.stragglers,
            repeats: c.repeats,
            renewals: c.renewals,
            unchanged_versions: c.unchanged_versions,
            exact: c.exact != 0,
        })
    }

    /// Lets an engine unmap its memory on a GPU while it sleeps: releases what is registered of it.
    /// Until [`resume`](Self::resume) the regions are neither read nor written, and updates are
    /// refused.
    ///
    /// `FailedPrecondition`: an update is at hand, or a snapshot is held.
    pub fn pause(&self) -> Result<()> {
        ffi::check(|error| unsafe { ffi::waybill_worker_pause(self.rank.handle.get(), error) })
    }

    /// Ends the pause; the regions are memory again, at the same addresses. `contents_kept`: false
    /// if the weights are lost, so that nothing is shown before the next version.
    pub fn resume(&self, contents_kept: bool) -> Result<()> {
        ffi::check(|error| unsafe {
            ffi::waybill_worker_resume(self.rank.handle.get(), contents_kept.into(), error)
        })
    }

    /// Returns how far the latest update has come.
    pub fn progress(&self) -> Result<Progress> {
        let c = ffi::fill(|out, error| unsafe {
            ffi::waybill_worker_progress(self.rank.handle.get(), out, error)
        })?;
        Ok(Progress::from_c(&c))
    }

    /// Describes the worker, as [`Trainer::describe`](crate::Trainer::describe) does.
    pub fn describe(&self) -> Result<String> {
        ffi::make_text(|out, error| unsafe {
            ffi::waybill_worker_describe(self.rank.handle.get(), out, error)
        })
    }

    /// Gets the newest version, and returns the one that is shown then. For a worker with
    /// [`WorkerOptions::updates_when_asked`](crate::WorkerOptions::updates_when_asked). It is the newest that
    /// any group has committed, or that all trainers hold, also if this worker shows it already. The
    /// workers of a group get it once all of them have asked; questions of the update are answered
    /// elsewhere, by [`Worker::next_event`]. A version that is published meanwhile takes its place.
    ///
    /// `at_least` is the least version that will do, and 0 any: this waits until there is one. The version
    /// that is shown plus 1 waits for a newer one. Of a group's workers the highest counts.
    ///
    /// Fails with [`Code::DeadlineExceeded`](crate::Code::DeadlineExceeded) if there is no version yet, a
    /// newer one could not be had, or other workers of the group have not asked; and with
    /// [`Code::FailedPrecondition`](crate::Code::FailedPrecondition) if versions come as they are published.
    pub fn fetch(&self, at_least: u64, deadline: impl Into<Deadline>) -> Result<u64> {
        let deadline = deadline.into().to_ns();
        self.rank.call(|token| {
            ffi::check(|error| unsafe {
                ffi::waybill_worker_fetch(self.rank.handle.get(), at_least, deadline, token, error)
            })
        })?;
        Ok(self.state()?.shown_version)
    }

    /// Compares what is shown now with the digests with which it came, and returns the version. It
    /// finds what somebody else has written to the memory since. It reads all of it on this thread,
    /// and a commit waits meanwhile.
    ///
    /// Fails with [`Code::DataLoss`](crate::Code::DataLoss), which names what differs;
    /// [`Code::FailedPrecondition`](crate::Code::FailedPrecondition) if nothing is shown, the memory is
    /// paused, or the version was published without digests; and
    /// [`Code::Unavailable`](crate::Code::Unavailable) while the memory is written in place, or an update
    /// waits to write it.
    pub fn verify(&self) -> Result<u64> {
        let mut version = 0;
        ffi::check(|error| unsafe {
            ffi::waybill_worker_verify(self.rank.handle.get(), &mut version, error)
        })?;
        Ok(version)
    }

    /// Holds what is shown. `holder` names the reader, for the error of an update that waits for the
    /// snapshot. Fails as [`Worker::verify`] does, but for lack of digests.
    pub fn snapshot(&self, holder: &str) -> Result<Snapshot> {
        let holder = c_text(holder);
        let handle = ffi::make(|out, error| unsafe {
            ffi::waybill_worker_snapshot(self.rank.handle.get(), holder.as_ptr(), out, error)
        })?;
        Ok(Snapshot {
            handle,
            _held: self.held.clone(),
        })
    }

    /// The `waybill_worker_t*`, for code that calls the C ABI by itself; it stays this value's.
    pub fn as_raw(&self) -> *mut c_void {
        self.rank.handle.get().cast()
    }

    /// Leaves the job, after the calls before it. What is shown can still be read.
    pub fn leave(&self) -> Result<()> {
        self.rank.call(|token| {
            ffi::check(|error| unsafe {
                ffi::waybill_worker_leave(self.rank.handle.get(), token, error)
            })
        })
    }

    /// Leaves at once, as [`Trainer::close`](crate::Trainer::close) does. Snapshots live on.
    pub fn close(&self) {
        self.rank.close();
    }
}

/// A hold on the version that was shown: its bytes do not change until it is dropped, and an update
/// that needs the buffer waits.
pub struct Snapshot {
    handle: Handle<ffi::waybill_snapshot_t>,
    _held: Arc<Held>, // The bytes may be those of the worker's regions.
}

impl Snapshot {
    /// Returns the version that is held.
    pub fn version(&self) -> u64 {
        unsafe { ffi::waybill_snapshot_version(self.handle.get()) }
    }

    /// Returns the bytes of a region of the worker's manifest. `OutOfRange`: there is no such region.
    pub fn region(&self, region: u32) -> Result<&[u8]> {
        let (mut data, mut size) = (null(), 0);
        ffi::check(|error| unsafe {
            ffi::waybill_snapshot_region(self.handle.get(), region, &mut data, &mut size, error)
        })?;
        if size == 0 {
            return Ok(&[]);
        }
        // SAFETY: Nobody changes or frees them while the snapshot is there: the library its buffers,
        // `_held` the regions.
        Ok(unsafe { slice::from_raw_parts(data.cast(), size as usize) })
    }

    /// Returns the elements of a region of the worker's manifest, which are all of one type.
    /// `InvalidArgument`: the region's bytes are no whole number of elements, or not aligned to them.
    pub fn elements<T: Element>(&self, region: u32) -> Result<&[T]> {
        let bytes = self.region(region)?;
        // SAFETY: All bits are an element of such a type.
        let (before, elements, after) = unsafe { bytes.align_to::<T>() };
        if before.is_empty() && after.is_empty() {
            return Ok(elements);
        }
        let message = format!(
            "read region {region} of a snapshot: its {} bytes at {:p} are not aligned elements of {} bytes",
            bytes.len(),
            bytes,
            size_of::<T>()
        );
        Err(Error::new(Code::InvalidArgument, message))
    }
}
