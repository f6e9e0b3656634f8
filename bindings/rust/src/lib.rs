// SPDX-License-Identifier: Apache-2.0

//! Waybill moves updated model weights from trainers to inference workers; this is its C ABI for Rust.
//!
//! One [`Controller`] plans for a job and decides commits. Each [`Trainer`] lends it memory (a
//! [`Region`]) that holds shards of tensors as a [`Manifest`] says, and publishes versions. Each
//! [`Worker`] shows them, whole or not at all: a [`Snapshot`] holds on to the one that is shown.
//!
//! Everything is `Send` and `Sync`, and may be used by any number of threads at the same time.
//! Memory is owned by its [`Region`], which lives until nothing of Waybill's can touch it: to leak a
//! value is safe. Where a call waits it takes a [`Deadline`], a `Duration` or an `Instant`.

#![deny(missing_docs, unsafe_op_in_unsafe_fn)]

mod context;
mod controller;
mod deadline;
mod dispatcher;
mod error;
mod event;
mod ffi;
mod layout;
mod manifest;
mod options;
mod plan;
mod rank;
mod region;
#[cfg(feature = "stream")]
mod stream;
mod trainer;
mod worker;

pub use context::{Context, LogLevel};
pub use controller::{job_tensors, query_controller, Controller};
pub use deadline::{now_ns, Deadline};
pub use error::{Code, Error, Result, Scope};
pub use event::{Event, Notice};
pub use layout::{Layout, WorkerLayout};
pub use manifest::{quantisation_named, Content, DType, Manifest, Padding, Quantisation, Shard};
pub use options::{ControllerOptions, PublishOptions, RankOptions, TrainerOptions, WorkerOptions};
pub use plan::{Plan, PlanSummary};
pub use rank::{Progress, Stage, ANY_RANK};
pub use region::{Element, Lent, MemoryKind, RawMemory, Reading, Region, Writing};
#[cfg(feature = "stream")]
pub use stream::Events;
pub use trainer::{Changes, CudaEvent, Trainer, Update};
pub use worker::{Ask, Mode, Snapshot, Worker, WorkerState};

/// The version of the library that is loaded: `"MAJOR.MINOR.PATCH"`.
pub fn version() -> &'static str {
    // SAFETY: The text is static.
    unsafe { ffi::static_text(ffi::waybill_version()) }
}

/// The major and the minor version of the ABI of the library that is loaded.
pub fn abi_version() -> (u16, u16) {
    let version = unsafe { ffi::waybill_abi_version() };
    ((version >> 16) as u16, version as u16)
}
