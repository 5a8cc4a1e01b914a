//! The return codes of NVML and their texts.

use std::ffi::CStr;

use nvml_wrapper_sys::bindings::nvmlReturn_t;

/// Any return code but success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused(nvmlReturn_t);

impl Refused {
    /// Turns a numeric code into an answer.
    pub(crate) fn with(code: nvmlReturn_t) -> Answer {
        if code == 0 { Ok(()) } else { Err(Self(code)) }
    }
}

/// The outcome of a call.
pub(crate) type Answer = Result<(), Refused>;

pub(crate) const UNINITIALIZED: Refused = Refused(1);
pub(crate) const INVALID_ARGUMENT: Refused = Refused(2);
pub(crate) const NOT_SUPPORTED: Refused = Refused(3);
pub(crate) const NO_PERMISSION: Refused = Refused(4);
pub(crate) const NOT_FOUND: Refused = Refused(6);
pub(crate) const INSUFFICIENT_SIZE: Refused = Refused(7);
pub(crate) const DRIVER_NOT_LOADED: Refused = Refused(9);
pub(crate) const TIMEOUT: Refused = Refused(10);
pub(crate) const FUNCTION_NOT_FOUND: Refused = Refused(13);
pub(crate) const GPU_IS_LOST: Refused = Refused(15);
pub(crate) const RESET_REQUIRED: Refused = Refused(16);
pub(crate) const LIB_RM_VERSION_MISMATCH: Refused = Refused(18);
pub(crate) const VERSION_MISMATCH: Refused = Refused(25);
pub(crate) const DEPRECATED: Refused = Refused(26);
pub(crate) const UNKNOWN: Refused = Refused(999);

/// The numeric code for the C caller.
pub(crate) fn code(answer: Answer) -> nvmlReturn_t {
    match answer {
        Ok(()) => 0,
        Err(Refused(code)) => code,
    }
}

/// The text of `nvmlErrorString`.
pub(crate) fn text(code: nvmlReturn_t) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        23 => c"Insufficient Resources",
        25 => c"Argument Version Mismatch",
        26 => c"Requested functionality has been deprecated",
        27 => c"Not Ready",
        28 => c"GPU Not Found",
        29 => c"Invalid State",
        _ => c"Unknown Error",
    }
}
