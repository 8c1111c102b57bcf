//! Failed requests, as the exceptions that PyTorch itself throws.
//!
//! PyTorch does not check a pluggable allocator's pointer: null becomes a tensor without memory.
//! Programs catch `torch.OutOfMemoryError` to retry with less. So an out-of-memory failure becomes
//! a `c10::OutOfMemoryError`, built the way PyTorch's own libraries build it. If one of its symbols
//! is missing, or for other errors, c10's function for failed checks throws instead. The text keeps
//! "CUDA out of memory", which programs search for.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;

use gpumemtrace_caching_allocator::{DriverError, OUT_OF_MEMORY};
use gpumemtrace_recorder::elf::{ElfModule, find_module};

/// A failed request, and what its error message states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocFailure {
    pub(crate) requested_bytes: u64,
    pub(crate) device: c_int,
    pub(crate) error: DriverError,
    /// Allocated and reserved bytes.
    pub(crate) held_bytes: (u64, u64),
    /// Free and total bytes of the device, if the driver reported them.
    pub(crate) device_memory: Option<(u64, u64)>,
}

impl AllocFailure {
    pub(crate) fn new(requested_bytes: u64, device: c_int, error: DriverError) -> Self {
        Self { requested_bytes, device, error, held_bytes: (0, 0), device_memory: None }
    }

    fn text(&self) -> String {
        let (requested, device) = (format_size(self.requested_bytes), self.device);
        let DriverError(code) = self.error;
        if self.error != OUT_OF_MEMORY {
            return format!(
                "CUDA error: gpumemtrace's allocator could not allocate {requested} on GPU {device}; the driver call \
                 failed with CUresult {code}"
            );
        }
        let capacity = self.device_memory.map_or_else(String::new, |(free, total)| {
            let (free, total) = (format_size(free), format_size(total));
            format!(" GPU {device} has a total capacity of {total} of which {free} is free.")
        });
        let (allocated, reserved) = self.held_bytes;
        format!(
            "CUDA out of memory. Tried to allocate {requested}.{capacity} Of the memory of gpumemtrace's allocator, {} \
             is allocated by PyTorch, and {} is reserved but unallocated.",
            format_size(allocated),
            format_size(reserved.saturating_sub(allocated)),
        )
    }
}

/// Formats sizes of a MiB and more as PyTorch does.
fn format_size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{bytes} bytes"),
        0x10_0000..0x4000_0000 => format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// A throwing function and its arguments, to be jumped to by `gpumemtrace_malloc`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PendingThrow {
    function: *mut c_void,
    arguments: [*mut c_void; 4],
}

impl PendingThrow {
    /// No exception: the process has no PyTorch.
    pub(crate) const NONE: Self = Self { function: null_mut(), arguments: [null_mut(); 4] };
}

/// Builds c10's exception. It is not thrown yet.
pub(crate) fn build_exception(failure: &AllocFailure) -> PendingThrow {
    let text = CString::new(failure.text()).unwrap_or_default();
    // Leaked: no code of this library runs after the throw. A few hundred bytes per exception.
    let text: &'static CStr = Box::leak(text.into_boxed_c_str());
    let out_of_memory = if failure.error == OUT_OF_MEMORY { OutOfMemoryErrorAbi::find() } else { None };
    out_of_memory.map_or_else(|| check_failed(text), |abi| abi.build(text))
}

/// The function, in torch 2.0 to 2.15, is `[[noreturn]] void c10::detail::torchCheckFail(const char
/// *function, const char *file, uint32_t line, const char *message)`.
fn check_failed(text: &'static CStr) -> PendingThrow {
    let function = find_symbol(c"_ZN3c106detail14torchCheckFailEPKcS2_jS2_");
    let arguments = [FUNCTION.as_ptr(), FILE.as_ptr(), std::ptr::null(), text.as_ptr()];
    PendingThrow { function, arguments: arguments.map(|text| text.cast_mut().cast()) }
}

const FUNCTION: &CStr = c"gpumemtrace_malloc";
const FILE: &CStr = c"gpumemtrace";

/// A symbol of PyTorch's libraries or of the C++ runtime that they use; null if there is none.
fn find_symbol(symbol: &CStr) -> *mut c_void {
    const LIBRARIES: [&CStr; 3] = [c"libc10.so", c"libc10_cuda.so", c"libstdc++.so.6"];
    let in_library = |library| {
        let own_symbol = |module: &ElfModule<'_>| module.is_named(library).then(|| module.symbol(symbol));
        find_module(own_symbol).flatten()
    };
    let found = LIBRARIES.iter().copied().find_map(in_library);
    found.map_or(null_mut(), |address| address as *mut c_void)
}

/// `c10::SourceLocation`, passed by value.
#[derive(Debug)]
#[repr(C)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// The constructor `c10::Error::Error(SourceLocation, std::string)`.
type ErrorConstructor = unsafe extern "C" fn(*mut c_void, SourceLocation, *mut c_void);
/// `std::string::string(const char *, const std::allocator<char> &)`.
type StringConstructor = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void);
type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;

/// The functions and data that throw a `c10::OutOfMemoryError`, which is a `c10::Error` with a
/// virtual table of its own.
#[derive(Debug)]
struct OutOfMemoryErrorAbi {
    allocate: Allocate,
    make_string: StringConstructor,
    make_error: ErrorConstructor,
    /// Virtual table: offset to top, type, destructor, ... (Itanium C++ ABI, 2.5.2).
    vtable: *const *mut c_void,
    /// `[[noreturn]] void __cxa_throw(void *exception, std::type_info *, void (*destroy)(void *))`.
    throw: *mut c_void,
}

/// Constructors of `c10::Error` and `std::string`, for the C++11 string ABI and the one before,
/// which torch wheels up to 2.6 use.
const STRING_ABIS: [(&CStr, &CStr); 2] = [
    (
        c"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_",
    ),
    (c"_ZN3c105ErrorC2ENS_14SourceLocationESs", c"_ZNSsC1EPKcRKSaIcE"),
];

impl OutOfMemoryErrorAbi {
    fn find() -> Option<Self> {
        let symbol = |name| {
            let address = find_symbol(name);
            (!address.is_null()).then_some(address)
        };
        let (make_error, make_string) =
            STRING_ABIS.iter().find_map(|(error, string)| Some((symbol(error)?, symbol(string)?)))?;
        // SAFETY: each symbol is the function of that name, with the signature of the C++ ABI.
        unsafe {
            Some(Self {
                allocate: std::mem::transmute::<*mut c_void, Allocate>(symbol(c"__cxa_allocate_exception")?),
                make_string: std::mem::transmute::<*mut c_void, StringConstructor>(make_string),
                make_error: std::mem::transmute::<*mut c_void, ErrorConstructor>(make_error),
                vtable: symbol(c"_ZTVN3c1016OutOfMemoryErrorE")?.cast_const().cast(),
                throw: symbol(c"__cxa_throw")?,
            })
        }
    }

    fn build(&self, text: &'static CStr) -> PendingThrow {
        /// Larger than `c10::Error` in any release (about 200 bytes).
        const ERROR_BYTES: usize = 1024;
        let mut string = [0u64; 4];
        let location = SourceLocation { function: FUNCTION.as_ptr(), file: FILE.as_ptr(), line: 0 };
        // SAFETY: the constructors get zeroed memory that is large enough. The error takes over the
        // string. Type and destructor come from the virtual table that the error is given.
        unsafe {
            let error = (self.allocate)(ERROR_BYTES);
            error.cast::<u8>().write_bytes(0, ERROR_BYTES);
            (self.make_string)(string.as_mut_ptr().cast(), text.as_ptr(), text.as_ptr().cast());
            (self.make_error)(error, location, string.as_mut_ptr().cast());
            error.cast::<*const *mut c_void>().write(self.vtable.add(2));
            PendingThrow {
                function: self.throw,
                arguments: [error, *self.vtable.add(1), *self.vtable.add(2), null_mut()],
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_text_matches_pytorchs_wording() {
        let failure = AllocFailure {
            held_bytes: (3 << 30, 4 << 30),
            device_memory: Some((1 << 20, 5 << 30)),
            ..AllocFailure::new(20 << 20, 1, OUT_OF_MEMORY)
        };
        assert_eq!(
            failure.text(),
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 5.00 GiB of which 1.00 MiB is \
             free. Of the memory of gpumemtrace's allocator, 3.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved but \
             unallocated."
        );
        assert!(AllocFailure::new(512, 0, DriverError(700)).text().ends_with("failed with CUresult 700"));
    }
}
