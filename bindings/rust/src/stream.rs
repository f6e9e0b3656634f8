// SPDX-License-Identifier: Apache-2.0

//! Notices for asynchronous programs, of whatever executor.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::rank::Inbox;
use crate::Event;

/// The notices of a trainer or a worker; it ends when that is closed. Several share them out.
pub struct Events(Arc<Inbox>);

impl Events {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Events {
        Events(inbox)
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.0.poll_next(context.waker())
    }
}
