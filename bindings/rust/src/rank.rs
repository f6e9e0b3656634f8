//! What a trainer and a worker have in common: calls that end with an event, and notices.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
#[cfg(feature = "stream")]
use std::task::Waker;
use std::time::Instant;

use crate::event::Event;
use crate::ffi;
use crate::region::Held;
use crate::{Code, Context, Deadline, Error, Result};

/// Who a rank is, and how it reaches others. Declared, never inferred.
#[derive(Clone, Debug, Default)]
pub struct RankOptions {
    /// Address and port; `""`: `"127.0.0.1:7070"`.
    pub controller: String,
    /// `""`: `"waybill"`.
    pub job: String,
    /// The token that the controller demands.
    pub token: String,
    /// The group of a worker; workers of one group switch together. `""`: `"all"`.
    pub group: String,
    /// The index of this rank; the first is 0.
    pub rank: u32,
    /// How many ranks of this role there are; 0: 1.
    pub world: u32,
    /// `"auto"` or `""`, `"local"`, `"verbs"`, `"tcp"`.
    pub fabric: String,
    /// This host's numeric address; `""`: as seen on the way to the controller.
    pub host: String,
    /// RDMA devices, `"mlx5_0"` or `"mlx5_1:2"`; none: every active port.
    pub nics: Vec<String>,
    /// 1 + the index; 0: by rule.
    pub gid_index: u32,
    /// The ACK timeout of queue pairs, 1 to 31; 0: 14, and 18 on SoftRoCE.
    pub ack_timeout: u32,
    /// The traffic class of RoCE packets.
    pub traffic_class: u32,
}

impl RankOptions {
    pub(crate) fn with_config<R>(
        &self,
        user: u64,
        use_it: impl FnOnce(&ffi::RankConfig) -> R,
    ) -> R {
        use_it(&ffi::RankConfig {
            controller: &self.controller,
            job: &self.job,
            token: &self.token,
            group: &self.group,
            rank: self.rank,
            world: self.world,
            fabric: &self.fabric,
            host: &self.host,
            nics: &self.nics.join(","),
            gid_index: self.gid_index,
            ack_timeout: self.ack_timeout,
            traffic_class: self.traffic_class,
            user,
        })
    }
}

/// Stages of an update on a rank, as indices of the times of [`Progress`](crate::Progress).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Stage {
    /// A trainer: maxima of split blocks are worked out and traded.
    Exchange = 0,
    /// Copies, casts, quantises.
    Stage = 1,
    /// Chunks are handed to the network.
    Post = 2,
    /// All is handed over, and not all of it is complete.
    Wait = 3,
    /// A worker: ready, and not everything is here.
    Receive = 4,
    /// Digests what has come.
    Verify = 5,
    /// The time from the decision until the version is shown.
    Commit = 6,
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

#[derive(Default)]
struct Pending {
    calls: HashMap<u64, (Arc<Call>, Option<Held>)>,
    last: u64,
    notices: VecDeque<Event>,
    retired: bool,
    #[cfg(feature = "stream")]
    wakers: Vec<Waker>,
}

/// The place where the dispatcher puts a rank's events.
#[derive(Default)]
pub(crate) struct Inbox {
    pending: Mutex<Pending>,
    changed: Condvar,
}

impl Inbox {
    pub(crate) fn take(&self, event: ffi::RawEvent) {
        if event.token == 0 {
            self.pending
                .lock()
                .unwrap()
                .notices
                .push_back(Event::from_raw(event));
            return self.wake();
        }
        let call = self.pending.lock().unwrap().calls.remove(&event.token);
        if let Some((call, held)) = call {
            drop(held); // Whoever sees the end may write again.
            call.end(event.status.into_result());
        }
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
    pub(crate) fn start(
        &self,
        held: Option<Held>,
        begin: impl FnOnce(u64) -> ffi::Status,
    ) -> Result<Arc<Call>> {
        let call = Arc::new(Call::default());
        let mut pending = self.pending.lock().unwrap();
        pending.last += 1;
        let token = pending.last;
        pending.calls.insert(token, (call.clone(), held));
        drop(pending);
        let begun = begin(token).into_result();
        if begun.is_err() {
            self.pending.lock().unwrap().calls.remove(&token);
        }
        begun.map(|()| call)
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
pub(crate) struct Rank {
    pub(crate) handle: u64,
    pub(crate) inbox: Arc<Inbox>,
    context: Context,
    user: u64,
    destroy: fn(u64),
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.close();
    }
}

impl Rank {
    /// `create` gets the number that the rank's events must have.
    pub(crate) fn create(
        context: Context,
        destroy: fn(u64),
        create: impl FnOnce(&Context, u64) -> Result<u64>,
    ) -> Result<Rank> {
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
            destroy,
        })
    }

    /// Leaves at once, and waits until nothing of Waybill's touches the regions.
    pub(crate) fn close(&self) {
        (self.destroy)(self.handle);
        self.context.dispatcher().close(self.user);
    }

    pub(crate) fn call(&self, begin: impl FnOnce(u64) -> ffi::Status) -> Result<()> {
        self.inbox.start(None, begin)?.wait_to_end()
    }

    pub(crate) fn next(&self, deadline: Deadline) -> Option<Event> {
        self.inbox.next(deadline.instant())
    }
}
