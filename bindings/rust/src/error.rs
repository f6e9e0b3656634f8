//! What the library says of calls that failed.

use std::fmt;

use crate::ffi;

/// The kind of an error. The numbers are those of gRPC and never change.
#[allow(missing_docs)]
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
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
        f.write_str(ffi::status_name(*self as i32))
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
    /// Nothing on this rank works any more.
    Engine,
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

impl ffi::Status {
    pub(crate) fn into_result(self) -> Result<()> {
        if self.code == 0 {
            return Ok(());
        }
        Err(Error {
            code: Code::from_number(self.code),
            scope: match self.scope {
                2 => Scope::Update,
                3 => Scope::Peer,
                4 => Scope::Engine,
                _ => Scope::Call,
            },
            message: self.message,
        })
    }
}
