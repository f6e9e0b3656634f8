// SPDX-License-Identifier: Apache-2.0

//! What the library says of calls that failed.

use std::fmt;

use crate::ffi::{self, Handle};

/// The kind of an error. The numbers are those of gRPC and never change.
#[allow(missing_docs)]
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    Cancelled = ffi::WAYBILL_CANCELLED as i32,
    Unknown = ffi::WAYBILL_UNKNOWN as i32,
    InvalidArgument = ffi::WAYBILL_INVALID_ARGUMENT as i32,
    DeadlineExceeded = ffi::WAYBILL_DEADLINE_EXCEEDED as i32,
    NotFound = ffi::WAYBILL_NOT_FOUND as i32,
    AlreadyExists = ffi::WAYBILL_ALREADY_EXISTS as i32,
    PermissionDenied = ffi::WAYBILL_PERMISSION_DENIED as i32,
    ResourceExhausted = ffi::WAYBILL_RESOURCE_EXHAUSTED as i32,
    FailedPrecondition = ffi::WAYBILL_FAILED_PRECONDITION as i32,
    Aborted = ffi::WAYBILL_ABORTED as i32,
    OutOfRange = ffi::WAYBILL_OUT_OF_RANGE as i32,
    Unimplemented = ffi::WAYBILL_UNIMPLEMENTED as i32,
    Internal = ffi::WAYBILL_INTERNAL as i32,
    Unavailable = ffi::WAYBILL_UNAVAILABLE as i32,
    DataLoss = ffi::WAYBILL_DATA_LOSS as i32,
    Unauthenticated = ffi::WAYBILL_UNAUTHENTICATED as i32,
}

impl Code {
    fn from_number(number: i32) -> Code {
        use Code::*;
        [
            Cancelled,
            Unknown,
            InvalidArgument,
            DeadlineExceeded,
            NotFound,
            AlreadyExists,
            PermissionDenied,
            ResourceExhausted,
            FailedPrecondition,
            Aborted,
            OutOfRange,
            Unimplemented,
            Internal,
            Unavailable,
            DataLoss,
            Unauthenticated,
        ]
        .into_iter()
        .find(|code| *code as i32 == number)
        .unwrap_or(Unknown)
    }
}

impl fmt::Display for Code {
    /// `"INVALID_ARGUMENT"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: The text is static.
        f.write_str(unsafe { ffi::static_text(ffi::waybill_status_name(*self as i32)) })
    }
}

/// How far an error reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// This call failed; everything else goes on.
    Call,
    /// This version will not be shown; the next may be.
    Update,
    /// One peer is gone; its lanes are rebuilt in another epoch.
    Peer,
}

/// The library's error of a call that failed, word for word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    scope: Scope,
    message: String,
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Error {
        Error {
            code,
            scope: Scope::Call,
            message: message.into(),
        }
    }

    /// Makes the result of a status and the error that came with it.
    pub(crate) fn check(
        status: ffi::waybill_status_t,
        error: &Handle<ffi::waybill_error_t>,
    ) -> Result<()> {
        if status == ffi::WAYBILL_OK as i32 {
            return Ok(());
        }
        Err(Error {
            code: Code::from_number(status),
            scope: match error.scope() {
                ffi::WAYBILL_SCOPE_UPDATE => Scope::Update,
                ffi::WAYBILL_SCOPE_PEER => Scope::Peer,
                _ => Scope::Call,
            },
            message: error.message(),
        })
    }

    /// Makes the error of an event that should have one and has none.
    pub(crate) fn none() -> Error {
        Error::new(Code::Unknown, "no reason was given")
    }

    /// Returns the kind of the error.
    pub fn code(&self) -> Code {
        self.code
    }

    /// How far it reaches.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Returns what was being done, to what, what was found and what is allowed.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}
