// SPDX-License-Identifier: Apache-2.0

//! Events as a stream, with the smallest of executors.

use std::future::poll_fn;
use std::future::Future;
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures_core::Stream;
use waybill::*;

use crate::job::*;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn next(events: &mut Events) -> Option<Event> {
    block_on(poll_fn(|context| Pin::new(&mut *events).poll_next(context)))
}

#[test]
fn a_stream_of_events_ends_when_its_worker_is_closed() {
    let job = Job::joined(JobOptions {
        ask: Ask::COMMIT,
        ..Default::default()
    });
    let mut events = job.workers[0].events();
    thread::scope(|scope| {
        scope.spawn(|| job.publish(1).unwrap());
        loop {
            match next(&mut events) {
                Some(Event::Commit(notice)) => break notice.accept().unwrap(),
                Some(Event::Prepare(_) | Event::Arrived(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    });
    job.workers[0].close();
    assert!(next(&mut events).is_none());
}
