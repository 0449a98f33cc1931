//! Errors: a code, the function that failed and a message that names what is wrong.
use moert_sys as sys;
use std::ffi::CStr;
use std::fmt;
use std::ptr;

/// Abseil's codes, as in moert.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    Cancelled = -1,
    Unknown = -2,
    InvalidArgument = -3,
    DeadlineExceeded = -4,
    NotFound = -5,
    AlreadyExists = -6,
    PermissionDenied = -7,
    ResourceExhausted = -8,
    FailedPrecondition = -9,
    Aborted = -10,
    OutOfRange = -11,
    Unimplemented = -12,
    Internal = -13,
    Unavailable = -14,
    DataLoss = -15,
    Unauthenticated = -16,
}

impl Code {
    fn from_c(code: sys::moert_code) -> Code {
        use Code::*;
        const ALL: [Code; 16] = [
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
        ];
        ALL.into_iter().find(|c| *c as i32 == code).unwrap_or(Unknown)
    }
}

#[derive(Clone, Debug)]
pub struct Error {
    pub code: Code,
    pub origin: String,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}: {}", self.origin, self.code, self.message)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn text(c: *const std::os::raw::c_char) -> String {
    if c.is_null() {
        return String::new();
    }
    // Strings of the library are NUL-terminated and live at least as long as the call.
    unsafe { CStr::from_ptr(c) }.to_string_lossy().into_owned()
}

/// Calls a function of the C API and takes the error object it made.
pub(crate) fn check(
    call: impl FnOnce(*mut *mut sys::moert_error) -> sys::moert_code,
) -> Result<()> {
    let mut error: *mut sys::moert_error = ptr::null_mut();
    let code = call(&mut error);
    if code == sys::MOERT_OK {
        return Ok(());
    }
    let result = Error {
        code: Code::from_c(code),
        origin: text(unsafe { sys::moert_error_origin(error) }),
        message: text(unsafe { sys::moert_error_message(error) }),
    };
    unsafe { sys::moert_error_destroy(error) };
    Err(result)
}
