// SPDX-License-Identifier: Apache-2.0

//! What a trainer and a worker have in common: calls that end with an event, and notices.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, Weak};
#[cfg(feature = "stream")]
use std::task::Waker;
use std::time::Instant;

use crate::event::{Event, RawEvent};
use crate::ffi::{self, Handle, Object, Texts};
use crate::region::Held;
use crate::{Code, Context, Deadline, Error, RankOptions, Result};

/// Any rank that nobody has, of those that the world has.
pub const ANY_RANK: u32 = ffi::WAYBILL_ANY_RANK;

impl RankOptions {
    /// Returns the options for C. `texts` has to live as long.
    pub(crate) fn to_c(&self, user: u64, texts: &mut Texts) -> ffi::waybill_rank_options_t {
        let mut c = ffi::waybill_rank_options_t {
            user,
            ..Default::default()
        };
        self.write_to(&mut c, texts);
        c
    }
}

/// Stages of an update on a rank, as indices of the times of [`Progress`](crate::Progress).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Stage {
    /// A trainer: maxima of split blocks are worked out and traded.
    Exchange = ffi::WAYBILL_STAGE_EXCHANGE as usize,
    /// Copies, casts, quantises.
    Stage = ffi::WAYBILL_STAGE_STAGE as usize,
    /// Chunks are handed to the network.
    Post = ffi::WAYBILL_STAGE_POST as usize,
    /// All is handed over, and not all of it is complete.
    Wait = ffi::WAYBILL_STAGE_WAIT as usize,
    /// A worker: ready, and not everything is here.
    Receive = ffi::WAYBILL_STAGE_RECEIVE as usize,
    /// Digests what has come.
    Verify = ffi::WAYBILL_STAGE_VERIFY as usize,
    /// The time from the decision until the version is shown.
    Commit = ffi::WAYBILL_STAGE_COMMIT as usize,
}

/// How far the latest update of a rank has come. Counts of equal plans are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The update's.
    pub version: u64,
    /// How many bytes this rank sends, or receives, in every update.
    pub planned_bytes: u64,
    /// Handed to the network or stored; of a worker: verified.
    pub bytes: u64,
    /// How many writes a trainer has posted to a network. What follows is a trainer's too.
    pub writes: u64,
    /// Chunks stored at their final address through a mapping.
    pub stores: u64,
    /// How many immediates rode on last writes.
    pub immediates: u64,
    /// Messages with maxima, to other trainers.
    pub maxima_messages: u64,
    /// The bytes of those messages.
    pub maxima_bytes: u64,
    /// NaNs and infinities among what was quantised.
    pub nonfinite: u64,
    /// By [`Stage`], on the clock of [`now_ns`](crate::now_ns); 0: not there, or not yet.
    pub begin_ns: [i64; 7],
    /// Likewise.
    pub end_ns: [i64; 7],
}

impl Progress {
    pub(crate) fn from_c(c: &ffi::waybill_progress_t) -> Progress {
        Progress {
            version: c.version,
            planned_bytes: c.planned_bytes,
            bytes: c.bytes,
            writes: c.writes,
            stores: c.stores,
            immediates: c.immediates,
            maxima_messages: c.maxima_messages,
            maxima_bytes: c.maxima_bytes,
            nonfinite: c.nonfinite,
            begin_ns: c.begin_ns,
            end_ns: c.end_ns,
        }
    }
}

/// A call that ends with an event.
#[derive(Default)]
pub(crate) struct Call {
    ended: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl Call {
    /// Returns None if `until` comes first; the call goes on.
    pub(crate) fn wait(&self, until: Option<Instant>) -> Option<Result<()>> {
        let mut ended = self.ended.lock().unwrap();
        loop {
            if let Some(result) = &*ended {
                return Some(result.clone());
            }
            ended = match until {
                None => self.changed.wait(ended).unwrap(),
                Some(instant) => {
                    let left = instant.checked_duration_since(Instant::now())?;
                    self.changed.wait_timeout(ended, left).unwrap().0
                }
            };
        }
    }

    pub(crate) fn wait_to_end(&self) -> Result<()> {
        self.wait(None).expect("it has no deadline")
    }

    fn end(&self, result: Result<()>) {
        *self.ended.lock().unwrap() = Some(result);
        self.changed.notify_all();
    }
}

/// The outcomes of a version by group: nothing if the group shows it, or why it does not.
pub(crate) type Outcomes = Mutex<HashMap<String, Result<()>>>;

#[derive(Default)]
struct Pending {
    /// The outcomes of each version whose update is still there.
    outcomes: Vec<(u64, Weak<Outcomes>)>,
    calls: HashMap<u64, (Arc<Call>, Option<Held>)>,
    last: u64,
    notices: VecDeque<Event>,
    retired: bool,
    #[cfg(feature = "stream")]
    wakers: Vec<Waker>,
}

impl Pending {
    fn settle(&mut self, event: &Event) {
        let Event::Outcome {
            version,
            group,
            result,
            ..
        } = event
        else {
            return;
        };
        self.outcomes
            .retain(|(_, outcomes)| outcomes.strong_count() > 0);
        // The library refuses a second publish of the same version.
        let first = self.outcomes.iter().find(|(of, _)| of == version);
        if let Some(outcomes) = first.and_then(|(_, outcomes)| outcomes.upgrade()) {
            let mut outcomes = outcomes.lock().unwrap();
            outcomes.insert(group.clone(), result.clone());
        }
    }
}

/// The place where the dispatcher puts a rank's events.
#[derive(Default)]
pub(crate) struct Inbox {
    pending: Mutex<Pending>,
    changed: Condvar,
}

impl Inbox {
    pub(crate) fn take(&self, event: RawEvent) {
        if event.token == 0 {
            let event = Event::from_raw(event);
            let mut pending = self.pending.lock().unwrap();
            pending.settle(&event);
            pending.notices.push_back(event);
            drop(pending);
            return self.wake();
        }
        let call = self.pending.lock().unwrap().calls.remove(&event.token);
        if let Some((call, held)) = call {
            drop(held); // Whoever sees the end may write again.
            call.end(event.result);
        }
    }

    /// Notes what becomes of a version in each group, for as long as somebody has what is returned.
    pub(crate) fn follow(&self, version: u64) -> Arc<Outcomes> {
        let outcomes = Arc::new(Outcomes::default());
        let mut pending = self.pending.lock().unwrap();
        pending.outcomes.push((version, Arc::downgrade(&outcomes)));
        outcomes
    }

    /// It was closed, and no event follows.
    pub(crate) fn retire(&self) {
        let mut pending = self.pending.lock().unwrap();
        pending.retired = true;
        let calls = std::mem::take(&mut pending.calls);
        drop(pending);
        for (call, held) in calls.into_values() {
            drop(held);
            call.end(Err(Error::new(Code::Cancelled, "it was closed")));
        }
        self.wake();
    }

    fn wake(&self) {
        self.changed.notify_all();
        #[cfg(feature = "stream")]
        for waker in std::mem::take(&mut self.pending.lock().unwrap().wakers) {
            waker.wake();
        }
    }

    /// Starts a call that ends with an event of the token; regions are held until then.
    pub(crate) fn start<T>(
        &self,
        held: Option<Held>,
        begin: impl FnOnce(u64) -> Result<T>,
    ) -> Result<(Arc<Call>, T)> {
        let call = Arc::new(Call::default());
        let mut pending = self.pending.lock().unwrap();
        pending.last += 1;
        let token = pending.last;
        pending.calls.insert(token, (call.clone(), held));
        drop(pending);
        let begun = begin(token);
        if begun.is_err() {
            self.pending.lock().unwrap().calls.remove(&token);
        }
        begun.map(|begun| (call, begun))
    }

    /// Returns the oldest notice, or None once the deadline passes or the rank is closed.
    pub(crate) fn next(&self, until: Option<Instant>) -> Option<Event> {
        let mut pending = self.pending.lock().unwrap();
        loop {
            if let Some(event) = pending.notices.pop_front() {
                return Some(event);
            }
            if pending.retired {
                return None;
            }
            pending = match until {
                None => self.changed.wait(pending).unwrap(),
                Some(instant) => {
                    let left = instant.checked_duration_since(Instant::now())?;
                    self.changed.wait_timeout(pending, left).unwrap().0
                }
            };
        }
    }

    /// Does the same without waiting. The waker is called when there may be a notice.
    #[cfg(feature = "stream")]
    pub(crate) fn poll_next(&self, waker: &Waker) -> std::task::Poll<Option<Event>> {
        let mut pending = self.pending.lock().unwrap();
        if let Some(event) = pending.notices.pop_front() {
            return std::task::Poll::Ready(Some(event));
        }
        if pending.retired {
            return std::task::Poll::Ready(None);
        }
        if !pending.wakers.iter().any(|known| known.will_wake(waker)) {
            pending.wakers.push(waker.clone());
        }
        std::task::Poll::Pending
    }
}

/// A rank that is open.
pub(crate) struct Rank<T: Object> {
    pub(crate) handle: Handle<T>,
    pub(crate) inbox: Arc<Inbox>,
    context: Context,
    user: u64,
}

impl<T: Object> Drop for Rank<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T: Object> Rank<T> {
    /// `create` gets the number that the rank's events must have.
    pub(crate) fn create(
        context: Context,
        create: impl FnOnce(&Context, u64) -> Result<Handle<T>>,
    ) -> Result<Rank<T>> {
        let (user, inbox) = context.dispatcher().open();
        let created = create(&context, user);
        if created.is_err() {
            context.dispatcher().close(user);
        }
        created.map(|handle| Rank {
            handle,
            inbox,
            context,
            user,
        })
    }

    /// Leaves at once, and waits until nothing of Waybill's touches the regions.
    pub(crate) fn close(&self) {
        unsafe { T::DESTROY(self.handle.get()) }; // Destroying it again does nothing.
        self.context.dispatcher().close(self.user);
    }

    pub(crate) fn call(&self, begin: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let (call, ()) = self.inbox.start(None, begin)?;
        call.wait_to_end()
    }

    pub(crate) fn next(&self, deadline: Deadline) -> Option<Event> {
        self.inbox.next(deadline.instant())
    }
}
