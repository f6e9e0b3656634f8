// SPDX-License-Identifier: Apache-2.0

//! Routing tables.

use crate::ffi::{self, c_text, Handle};
use crate::{Manifest, Result};

/// A plan in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlanSummary {
    /// Equal plans, equal hashes, on every host.
    pub hash: u64,
    /// How many bytes arrive at workers in each update.
    pub bytes: u64,
    /// Boxes that go from one rank to another.
    pub routes: u64,
    /// How many writes the routes become if nothing can be mapped.
    pub writes: u64,
    /// How many maxima of split quantisation blocks trainers trade.
    pub maxima: u64,
    /// How many messages they are traded by.
    pub maxima_messages: u64,
    /// The busiest rank over the lower bound of any assignment; 1 is perfect.
    pub busiest_to_bound: f64,
    /// The busiest trainer over the mean.
    pub busiest_to_mean: f64,
}

/// The routing tables of a job. It never changes.
pub struct Plan(Handle<ffi::waybill_plan_t>);

impl Plan {
    /// Pure: the same manifests in the same order give the same plan, byte for byte, on every host.
    /// Their index is the rank. `smallest_piece_bytes` is of what several trainers hold, and share
    /// out; 0: 64 KiB.
    pub fn build(
        trainers: &[Manifest],
        workers: &[Manifest],
        smallest_piece_bytes: u64,
    ) -> Result<Plan> {
        let [trainers, workers] = [trainers, workers].map(|manifests| -> Vec<*const _> {
            manifests.iter().map(|m| m.handle().cast_const()).collect()
        });
        let options = ffi::waybill_plan_options_t {
            trainers: ffi::begin(&trainers),
            workers: ffi::begin(&workers),
            trainer_count: trainers.len() as u32,
            worker_count: workers.len() as u32,
            smallest_piece_bytes,
            ..Default::default()
        };
        ffi::make(|out, error| unsafe { ffi::waybill_plan_build(&options, out, error) }).map(Plan)
    }

    /// The plan in numbers.
    pub fn summarise(&self) -> Result<PlanSummary> {
        let c = ffi::fill(|out, error| unsafe {
            ffi::waybill_plan_summarise(self.0.get(), out, error)
        })?;
        Ok(PlanSummary {
            hash: c.hash,
            bytes: c.bytes,
            routes: c.routes,
            writes: c.writes,
            maxima: c.maxima,
            maxima_messages: c.maxima_messages,
            busiest_to_bound: c.busiest_to_bound,
            busiest_to_mean: c.busiest_to_mean,
        })
    }

    /// `format`: `"text"`, a table for people; `"json"`; `"routes"`, JSON with every route.
    pub fn explain(&self, format: &str) -> Result<String> {
        let format = c_text(format);
        ffi::make_text(|out, error| unsafe {
            ffi::waybill_plan_explain(self.0.get(), format.as_ptr(), out, error)
        })
    }
}
