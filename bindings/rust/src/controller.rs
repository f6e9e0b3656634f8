//! What plans for a job and decides commits.

use std::time::Duration;

use crate::ffi;
use crate::{Context, Deadline, Result};

/// The options of a controller. The defaults are fine.
#[derive(Clone, Default)]
pub struct ControllerOptions {
    /// None: the default one.
    pub context: Option<Context>,
    /// Address and port; port 0 takes a free one. `""`: `"127.0.0.1:7070"`.
    pub listen: String,
    /// `""`: `"waybill"`.
    pub job: String,
    /// The token that every rank has to show; needed beyond loopback.
    pub token: String,
    /// A file; `""`: decisions die with this process.
    pub decision_log: String,
    /// How many are demanded; 0: as many as they declare.
    pub trainers: u32,
    /// Likewise.
    pub workers: u32,
    /// How long ranks wait for the others; zero: 120 s.
    pub join_timeout: Duration,
}

/// Plans for a job and decides commits, in this process, until it is dropped: ranks are told then,
/// which takes a second at most.
pub struct Controller {
    handle: u64,
    address: String,
}

impl Drop for Controller {
    fn drop(&mut self) {
        ffi::controller_destroy(self.handle);
    }
}

impl Controller {
    /// Starts serving.
    pub fn start(options: &ControllerOptions) -> Result<Controller> {
        let context = Context::or_default(&options.context)?;
        let config = ffi::ControllerConfig {
            listen: &options.listen,
            job: &options.job,
            token: &options.token,
            decision_log: &options.decision_log,
            trainers: options.trainers,
            workers: options.workers,
            join_timeout_ns: i64::try_from(options.join_timeout.as_nanos()).unwrap_or(i64::MAX),
        };
        let mut controller = Controller {
            handle: 0,
            address: String::new(),
        };
        ffi::controller_start(context.handle(), &config, &mut controller.handle).into_result()?;
        ffi::controller_address(controller.handle, &mut controller.address).into_result()?;
        Ok(controller)
    }

    /// Returns the address that ranks connect to: `"127.0.0.1:40123"`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns what the job is doing, as JSON: phase, versions, ranks, lanes, NICs.
    pub fn status(&self) -> Result<String> {
        let mut json = String::new();
        ffi::controller_status(self.handle, &mut json).into_result()?;
        Ok(json)
    }
}

/// The status of a controller anywhere. By default it waits for 5 s.
pub fn query_controller(
    address: &str,
    token: &str,
    deadline: impl Into<Deadline>,
) -> Result<String> {
    let context = Context::default_context()?;
    let (mut json, deadline) = (String::new(), deadline.into().to_ns());
    ffi::controller_query(context.handle(), address, token, deadline, &mut json).into_result()?;
    Ok(json)
}
