// SPDX-License-Identifier: Apache-2.0

//! What plans for a job and decides commits.

use std::ffi::c_char;

use crate::ffi::{self, c_text, Handle, Texts};
use crate::{Context, ControllerOptions, Deadline, Result};

/// Plans for a job and decides commits, in this process, until it is dropped: ranks are told then,
/// which takes a second at most.
pub struct Controller {
    handle: Handle<ffi::waybill_controller_t>,
    address: String,
}

impl Controller {
    /// Starts serving.
    pub fn start(options: &ControllerOptions) -> Result<Controller> {
        let context = Context::or_default(&options.context)?;
        let mut texts = Texts::default();
        let mut c = ffi::waybill_controller_options_t::default();
        options.write_to(&mut c, &mut texts);
        let handle = ffi::make(|out, error| unsafe {
            ffi::waybill_controller_start(context.handle(), &c, out, error)
        })?;
        let address = ffi::make_text(|out, error| unsafe {
            ffi::waybill_controller_address(handle.get(), out, error)
        })?;
        Ok(Controller { handle, address })
    }

    /// Returns the address that ranks connect to: `"127.0.0.1:40123"`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns what the job is doing, as JSON: phase, versions, ranks, lanes, NICs.
    pub fn status(&self) -> Result<String> {
        ffi::make_text(|out, error| unsafe {
            ffi::waybill_controller_status(self.handle.get(), out, error)
        })
    }
}

/// The tensors that a job's trainers declare, each once, as JSON: `{"tensors": [{"name": ..., "dtype":
/// "BF16", "shape": [4096]}, ...]}`. Waits until all trainers have said what they hold, by default for
/// 5 s; then [`Code::DeadlineExceeded`] names those that are missing. `address` is as
/// [`RankOptions::controller`].
///
/// [`Code::DeadlineExceeded`]: crate::Code::DeadlineExceeded
/// [`RankOptions::controller`]: crate::RankOptions::controller
pub fn job_tensors(address: &str, token: &str, deadline: impl Into<Deadline>) -> Result<String> {
    ask(ffi::waybill_job_tensors, address, token, deadline.into())
}

/// The status of a controller anywhere; `address` is as [`RankOptions::controller`]. By default it
/// waits for 5 s.
///
/// [`RankOptions::controller`]: crate::RankOptions::controller
pub fn query_controller(
    address: &str,
    token: &str,
    deadline: impl Into<Deadline>,
) -> Result<String> {
    ask(
        ffi::waybill_controller_query,
        address,
        token,
        deadline.into(),
    )
}

type Question = unsafe extern "C" fn(
    *mut ffi::waybill_context_t,
    *const c_char,
    *const c_char,
    i64,
    *mut *mut ffi::waybill_blob_t,
    *mut *mut ffi::waybill_error_t,
) -> ffi::waybill_status_t;

fn ask(question: Question, address: &str, token: &str, deadline: Deadline) -> Result<String> {
    let context = Context::default_context()?;
    let (address, token) = (c_text(address), c_text(token));
    ffi::make_text(|out, error| unsafe {
        question(
            context.handle(),
            address.as_ptr(),
            token.as_ptr(),
            deadline.to_ns(),
            out,
            error,
        )
    })
}
