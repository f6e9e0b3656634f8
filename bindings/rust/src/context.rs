//! What the objects of one user share.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, OnceLock};

use crate::dispatcher::Dispatcher;
use crate::ffi;
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

/// The function that the library calls for each line of its log.
pub(crate) struct LogSink(Option<Box<LogFunction>>);

impl LogSink {
    pub(crate) fn log(&self, level: u32, line: &str) {
        if let Some(log) = &self.0 {
            let level = match level {
                2 => LogLevel::Warning,
                _ => LogLevel::Information,
            };
            // What unwinds must stop before C; the panic has been told where panics are.
            let _ = catch_unwind(AssertUnwindSafe(|| log(level, line)));
        }
    }
}

/// What the objects of one user share: the log, and a thread that hands out what happens to them.
/// It is gone when it and all that was made from it are dropped.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    handle: u64,
    dispatcher: Dispatcher,
}

impl Drop for Inner {
    fn drop(&mut self) {
        ffi::context_destroy(self.handle);
    }
}

impl Context {
    /// One that logs nothing.
    pub fn new() -> Result<Context> {
        Context::create(LogSink(None))
    }

    /// `log` is called on any thread, must not call this crate, and is never dropped. A panic of its
    /// loses the line, and nothing else.
    pub fn with_log(log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Result<Context> {
        Context::create(LogSink(Some(Box::new(log))))
    }

    fn create(sink: LogSink) -> Result<Context> {
        let (mut handle, logs) = (0, sink.0.is_some());
        ffi::context_create(Box::new(sink), logs, &mut handle).into_result()?;
        match Dispatcher::start(handle) {
            Ok(dispatcher) => Ok(Context(Arc::new(Inner { handle, dispatcher }))),
            Err(error) => {
                ffi::context_destroy(handle);
                Err(error)
            }
        }
    }

    /// The program's, for everything that is made without another one. It logs nothing.
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
        let mut json = String::new();
        ffi::context_describe(self.handle(), &mut json).into_result()?;
        Ok(json)
    }

    pub(crate) fn handle(&self) -> u64 {
        self.0.handle
    }

    pub(crate) fn dispatcher(&self) -> &Dispatcher {
        &self.0.dispatcher
    }
}
