//! The thread that takes a queue's events and hands each to its rank.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::ffi;
use crate::rank::Inbox;
use crate::{Code, Error, Result};

const POSTED: u32 = 4;

/// The inboxes of ranks, by what their events have as `user`.
#[derive(Default)]
struct Inboxes {
    open: HashMap<u64, Arc<Inbox>>,
    last: u64,
}

pub(crate) struct Dispatcher {
    queue: u64,
    inboxes: Arc<Mutex<Inboxes>>,
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        ffi::queue_destroy(self.queue); // The thread ends by that.
    }
}

impl Dispatcher {
    pub(crate) fn start(context: u64) -> Result<Dispatcher> {
        let mut queue = 0;
        ffi::queue_create(context, &mut queue).into_result()?;
        let inboxes = Arc::new(Mutex::new(Inboxes::default()));
        let dispatcher = Dispatcher {
            queue,
            inboxes: inboxes.clone(),
        };
        thread::Builder::new()
            .name("waybill-events".into())
            .spawn(move || run(queue, &inboxes))
            .map_err(|e| Error::new(Code::ResourceExhausted, format!("start a thread: {e}")))?;
        Ok(dispatcher)
    }

    pub(crate) fn queue(&self) -> u64 {
        self.queue
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
        ffi::queue_post(self.queue, user);
    }
}

fn run(queue: u64, inboxes: &Mutex<Inboxes>) {
    let mut event = ffi::RawEvent::default();
    while ffi::queue_wait(queue, &mut event) {
        if event.kind == POSTED {
            let inbox = inboxes.lock().unwrap().open.remove(&event.token);
            if let Some(inbox) = inbox {
                inbox.retire();
            }
            continue;
        }
        let inbox = inboxes.lock().unwrap().open.get(&event.user).cloned();
        match inbox {
            Some(inbox) => inbox.take(std::mem::take(&mut event)),
            None => ffi::update_destroy(event.update),
        }
    }
}
