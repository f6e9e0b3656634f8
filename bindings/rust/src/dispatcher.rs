// SPDX-License-Identifier: Apache-2.0

//! The thread that takes a queue's events and hands each to its rank.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::event::RawEvent;
use crate::ffi::{self, Handle};
use crate::rank::Inbox;
use crate::{Code, Error, Result};

/// The inboxes of ranks, by what their events have as `user`.
#[derive(Default)]
struct Inboxes {
    open: HashMap<u64, Arc<Inbox>>,
    last: u64,
}

pub(crate) struct Dispatcher {
    queue: Arc<Handle<ffi::waybill_queue_t>>,
    inboxes: Arc<Mutex<Inboxes>>,
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        // The thread, which shares the handle, ends by that. Destroying it again does nothing.
        unsafe { ffi::waybill_queue_destroy(self.queue.get()) };
    }
}

impl Dispatcher {
    pub(crate) fn start(context: &Handle<ffi::waybill_context_t>) -> Result<Dispatcher> {
        let queue = Arc::new(ffi::make(|out, error| unsafe {
            ffi::waybill_queue_create(context.get(), out, error)
        })?);
        let inboxes = Arc::new(Mutex::new(Inboxes::default()));
        let dispatcher = Dispatcher {
            queue: queue.clone(),
            inboxes: inboxes.clone(),
        };
        thread::Builder::new()
            .name("waybill-events".into())
            .spawn(move || run(&queue, &inboxes))
            .map_err(|e| Error::new(Code::ResourceExhausted, format!("start a thread: {e}")))?;
        Ok(dispatcher)
    }

    pub(crate) fn queue(&self) -> *mut ffi::waybill_queue_t {
        self.queue.get()
    }

    /// An inbox for a rank, and the number that its events must have.
    pub(crate) fn open(&self) -> (u64, Arc<Inbox>) {
        let mut inboxes = self.inboxes.lock().unwrap();
        inboxes.last += 1;
        let (user, inbox) = (inboxes.last, Arc::new(Inbox::default()));
        inboxes.open.insert(user, inbox.clone());
        (user, inbox)
    }

    /// Behind the last event of a rank that was destroyed its inbox is retired.
    pub(crate) fn close(&self, user: u64) {
        // It fails only in a forked process, where no events come.
        let _ = ffi::check(|error| unsafe { ffi::waybill_queue_post(self.queue(), user, error) });
    }
}

fn run(queue: &Handle<ffi::waybill_queue_t>, inboxes: &Mutex<Inboxes>) {
    while let Some(event) = RawEvent::wait(queue) {
        if event.kind == ffi::WAYBILL_EVENT_POSTED {
            let inbox = inboxes.lock().unwrap().open.remove(&event.token);
            if let Some(inbox) = inbox {
                inbox.retire();
            }
            continue;
        }
        let inbox = inboxes.lock().unwrap().open.get(&event.user).cloned();
        if let Some(inbox) = inbox {
            inbox.take(event);
        }
    }
}
