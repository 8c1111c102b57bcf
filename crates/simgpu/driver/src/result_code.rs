//! The `CUresult` codes that the simulated driver returns, named as in the public header.

/// A driver result code; 0 is success.
pub(crate) type Rc = u32;

/// The result of a driver function's body: a value, or its error code.
pub(crate) type ApiResult<T = ()> = Result<T, Rc>;

pub(crate) const SUCCESS: Rc = 0;
pub(crate) const INVALID_VALUE: Rc = 1;
pub(crate) const OUT_OF_MEMORY: Rc = 2;
pub(crate) const NOT_INITIALIZED: Rc = 3;
pub(crate) const NO_DEVICE: Rc = 100;
pub(crate) const INVALID_DEVICE: Rc = 101;
pub(crate) const INVALID_CONTEXT: Rc = 201;
pub(crate) const INVALID_HANDLE: Rc = 400;
pub(crate) const NOT_FOUND: Rc = 500;
pub(crate) const NOT_READY: Rc = 600;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Rc = 704;
pub(crate) const PEER_ACCESS_NOT_ENABLED: Rc = 705;
pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Rc = 712;
pub(crate) const HOST_MEMORY_NOT_REGISTERED: Rc = 713;
pub(crate) const NOT_SUPPORTED: Rc = 801;
pub(crate) const STREAM_CAPTURE_UNSUPPORTED: Rc = 900;
pub(crate) const STREAM_CAPTURE_INVALIDATED: Rc = 901;
pub(crate) const STREAM_CAPTURE_UNMATCHED: Rc = 903;
pub(crate) const STREAM_CAPTURE_WRONG_THREAD: Rc = 908;
pub(crate) const CAPTURED_EVENT: Rc = 907;
pub(crate) const UNKNOWN: Rc = 999;

/// Name and text of each code, as the real driver returns them.
const TEXTS: &[(Rc, &core::ffi::CStr, &core::ffi::CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled"),
    (705, c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access has not been enabled"),
    (
        712,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        713,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region",
    ),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing"),
    (
        901,
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"operation failed due to a previous error during capture",
    ),
    (903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"capture was not initiated in this stream"),
    (904, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work"),
    (
        907,
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
    (
        908,
        c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        c"attempt to terminate a thread-local capture sequence from another thread",
    ),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

/// Returns the name of a code; `None` if the driver never returns it.
pub(crate) fn name(rc: Rc) -> Option<&'static core::ffi::CStr> {
    TEXTS.iter().find(|entry| entry.0 == rc).map(|entry| entry.1)
}

/// Returns the text of a code; `None` if the driver never returns it.
pub(crate) fn text(rc: Rc) -> Option<&'static core::ffi::CStr> {
    TEXTS.iter().find(|entry| entry.0 == rc).map(|entry| entry.2)
}
