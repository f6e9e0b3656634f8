// SPDX-License-Identifier: Apache-2.0

//! What the objects of one user share.

use std::ffi::{c_char, c_void, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, OnceLock};

use crate::dispatcher::Dispatcher;
use crate::ffi::{self, Handle};
use crate::Result;

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Information: what was chosen and why.
    Information,
    /// A warning: what fell back.
    Warning,
}

type LogFunction = dyn Fn(LogLevel, &str) + Send + Sync;

/// Receives each line of the library's log. `user` is a `Box<LogFunction>` that was leaked.
unsafe extern "C" fn log_line(user: *mut c_void, level: u32, line: *const c_char) {
    let level = match level {
        2 => LogLevel::Warning,
        _ => LogLevel::Information,
    };
    // A panic must not reach C; the panic hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: The function is never dropped, and the line lives during this call.
        let (log, line) = unsafe { (&*user.cast::<Box<LogFunction>>(), CStr::from_ptr(line)) };
        log(level, &line.to_string_lossy());
    }));
}

/// What the objects of one user share: the log, and a thread that hands out what happens to them.
/// It is gone when it and all that was made from it are dropped.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    handle: Handle<ffi::waybill_context_t>,
    dispatcher: Dispatcher,
}

impl Context {
    /// One that writes warnings to standard error.
    pub fn new() -> Result<Context> {
        Context::create(&ffi::waybill_context_options_t::default())
    }

    /// `log` is called on any thread, must not call this crate, and is never dropped. A panic of its
    /// loses the line, and nothing else.
    pub fn with_log(log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Result<Context> {
        let log: Box<LogFunction> = Box::new(log);
        // It is leaked: the context's last child may outlive everything else.
        Context::create(&ffi::waybill_context_options_t {
            log_sink: Some(log_line),
            log_user: Box::into_raw(Box::new(log)).cast(),
            ..Default::default()
        })
    }

    fn create(options: &ffi::waybill_context_options_t) -> Result<Context> {
        let handle =
            ffi::make(|out, error| unsafe { ffi::waybill_context_create(options, out, error) })?;
        let dispatcher = Dispatcher::start(&handle)?;
        Ok(Context(Arc::new(Inner { handle, dispatcher })))
    }

    /// The program's, for everything that is made without another one. It writes warnings to standard
    /// error.
    pub fn default_context() -> Result<Context> {
        static DEFAULT: OnceLock<Result<Context>> = OnceLock::new();
        DEFAULT.get_or_init(Context::new).clone()
    }

    pub(crate) fn or_default(context: &Option<Context>) -> Result<Context> {
        match context {
            Some(context) => Ok(context.clone()),
            None => Context::default_context(),
        }
    }

    /// Returns what this host and this build can do, as JSON: version, SIMD targets, fabrics (or why not),
    /// GPUs (or why not).
    pub fn describe(&self) -> Result<String> {
        ffi::make_text(|out, error| unsafe {
            ffi::waybill_context_describe(self.handle(), out, error)
        })
    }

    pub(crate) fn handle(&self) -> *mut ffi::waybill_context_t {
        self.0.handle.get()
    }

    pub(crate) fn dispatcher(&self) -> &Dispatcher {
        &self.0.dispatcher
    }
}
