//! Routing tables.

use crate::ffi;
use crate::{Manifest, PlanSummary, Result};

/// The routing tables of a job. It never changes.
pub struct Plan(u64);

impl Drop for Plan {
    fn drop(&mut self) {
        ffi::plan_destroy(self.0);
    }
}

impl Plan {
    /// Pure: the same manifests in the same order give the same plan, byte for byte, on every host.
    /// Their index is the rank. `smallest_piece_bytes` is of what several trainers hold, and share
    /// out; 0: 64 KiB.
    pub fn build(
        trainers: &[Manifest],
        workers: &[Manifest],
        smallest_piece_bytes: u64,
    ) -> Result<Plan> {
        let handles = |manifests: &[Manifest]| manifests.iter().map(Manifest::handle).collect();
        let (trainers, workers): (Vec<u64>, Vec<u64>) = (handles(trainers), handles(workers));
        let mut handle = 0;
        ffi::plan_build(&trainers, &workers, smallest_piece_bytes, &mut handle).into_result()?;
        Ok(Plan(handle))
    }

    /// The plan in numbers.
    pub fn summarise(&self) -> Result<PlanSummary> {
        let mut summary = PlanSummary::default();
        ffi::plan_summarise(self.0, &mut summary).into_result()?;
        Ok(summary)
    }

    /// `format`: `"text"`, a table for people; `"json"`; `"routes"`, JSON with every route.
    pub fn explain(&self, format: &str) -> Result<String> {
        let mut text = String::new();
        ffi::plan_explain(self.0, format, &mut text).into_result()?;
        Ok(text)
    }
}
