//! Saying no in PyTorch's own words.
//!
//! Constraint: PyTorch does not test the pointer it gets; null becomes a tensor without memory. Programs catch
//! `torch.OutOfMemoryError` to go on with less. Consequence: a refusal is thrown as `c10::OutOfMemoryError`, made the way
//! PyTorch's own libraries make it; where a symbol for that is missing, through c10's function for failed checks, with the
//! text that tools look for ("CUDA out of memory").

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::cache::{Failure, OUT_OF_MEMORY};

/// A request that gets nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) bytes: u64,
    pub(crate) device: c_int,
    pub(crate) failure: Failure,
    /// Bytes of tensors and of segments.
    pub(crate) held: (u64, u64),
    /// What the driver said is free, and all there is.
    pub(crate) memory: Option<(u64, u64)>,
}

impl Refusal {
    pub(crate) fn new(bytes: u64, device: c_int, failure: Failure) -> Self {
        Self { bytes, device, failure, held: (0, 0), memory: None }
    }

    fn text(&self) -> String {
        let (bytes, device) = (mib(self.bytes), self.device);
        let Failure(code) = self.failure;
        if self.failure != OUT_OF_MEMORY {
            return format!(
                "CUDA error. gpumemtrace's allocator asked for {bytes} on GPU {device}; the driver answered {code}"
            );
        }
        let device_has = self.memory.map_or_else(String::new, |(free, total)| {
            format!(" GPU {device} has a total capacity of {} of which {} is free.", mib(total), mib(free))
        });
        let (allocated, reserved) = self.held;
        format!(
            "CUDA out of memory. Tried to allocate {bytes}.{device_has} Of the memory of gpumemtrace's allocator {} is allocated \
             by PyTorch, and {} is reserved but unallocated.",
            mib(allocated),
            mib(reserved.saturating_sub(allocated)),
        )
    }
}

/// As PyTorch writes sizes.
fn mib(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{bytes} bytes"),
        0x10_0000..0x4000_0000 => format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// A function that does not return, and its arguments: where the caller's caller goes on.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Leave {
    function: *mut c_void,
    arguments: [*mut c_void; 4],
}

impl Leave {
    /// There is no PyTorch in this process.
    pub(crate) const NOWHERE: Self = Self { function: null_mut(), arguments: [null_mut(); 4] };
}

/// Makes c10's error; to be thrown by a jump.
pub(crate) fn exception(refusal: &Refusal) -> Leave {
    let text = CString::new(refusal.text()).unwrap_or_default();
    // Nobody of ours is there when it has been read: some hundred bytes for each.
    let text: &'static CStr = Box::leak(text.into_boxed_c_str());
    let made = if refusal.failure == OUT_OF_MEMORY { OutOfMemory::find() } else { None };
    made.map_or_else(|| check_failed(text), |made| made.exception(text))
}

/// `[[noreturn]] c10::detail::torchCheckFail(const char* func, const char* file, uint32_t line, const char* msg)`, in torch 2.0 to 2.15.
fn check_failed(text: &'static CStr) -> Leave {
    let function = find(c"libc10.so", c"_ZN3c106detail14torchCheckFailEPKcS2_jS2_");
    let arguments = [FUNCTION.as_ptr(), FILE.as_ptr(), std::ptr::null(), text.as_ptr()];
    Leave { function, arguments: arguments.map(|text| text.cast_mut().cast()) }
}

const FUNCTION: &CStr = c"gpumemtrace_malloc";
const FILE: &CStr = c"gpumemtrace";

/// A symbol of a library that is loaded, or of one that it needs.
fn find(library: &CStr, symbol: &CStr) -> *mut c_void {
    // SAFETY: NUL-terminated names; with NOLOAD nothing is loaded.
    unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() { null_mut() } else { libc::dlsym(library, symbol.as_ptr()) }
    }
}

/// `c10::SourceLocation`, passed by value.
#[derive(Debug)]
#[repr(C)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// `c10::Error::Error(SourceLocation, std::string)`.
type ErrorConstructor = unsafe extern "C" fn(*mut c_void, SourceLocation, *mut c_void);
/// `std::string::string(const char *, const std::allocator<char> &)`.
type StringConstructor = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void);
type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;

/// What it takes to throw a `c10::OutOfMemoryError`: it is a `c10::Error` with a table of virtual functions of its own.
#[derive(Debug)]
struct OutOfMemory {
    allocate: Allocate,
    make_string: StringConstructor,
    make_error: ErrorConstructor,
    /// Offset to top, type, destructor, ...: the layout of the Itanium C++ ABI, 2.5.2.
    table: *const *mut c_void,
    /// `[[noreturn]] void __cxa_throw(void *exception, std::type_info *, void (*destructor)(void *))`.
    throw: *mut c_void,
}

/// Wheels of torch up to 2.6 are built with the strings of before C++11.
const STRINGS: [(&CStr, &CStr); 2] = [
    (
        c"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_",
    ),
    (c"_ZN3c105ErrorC2ENS_14SourceLocationESs", c"_ZNSsC1EPKcRKSaIcE"),
];

impl OutOfMemory {
    fn find() -> Option<Self> {
        // Both c10 and the C++ runtime are among what it needs.
        let symbol = |name| {
            let address = find(c"libc10_cuda.so", name);
            (!address.is_null()).then_some(address)
        };
        let (make_error, make_string) =
            STRINGS.iter().find_map(|(error, string)| Some((symbol(error)?, symbol(string)?)))?;
        // SAFETY: each symbol is the function of that name, whose form the C++ ABI says.
        unsafe {
            Some(Self {
                allocate: std::mem::transmute::<*mut c_void, Allocate>(symbol(c"__cxa_allocate_exception")?),
                make_string: std::mem::transmute::<*mut c_void, StringConstructor>(make_string),
                make_error: std::mem::transmute::<*mut c_void, ErrorConstructor>(make_error),
                table: symbol(c"_ZTVN3c1016OutOfMemoryErrorE")?.cast_const().cast(),
                throw: symbol(c"__cxa_throw")?,
            })
        }
    }

    fn exception(&self, text: &'static CStr) -> Leave {
        /// More than any release's `c10::Error` has (about 200).
        const ERROR_BYTES: usize = 1024;
        let mut string = [0u64; 4];
        let place = SourceLocation { function: FUNCTION.as_ptr(), file: FILE.as_ptr(), line: 0 };
        // SAFETY: the constructors get zeroed memory that is large enough, and the string's text is moved into the error, whose
        // type and destructor are those of the class that the table is of.
        unsafe {
            let error = (self.allocate)(ERROR_BYTES);
            error.cast::<u8>().write_bytes(0, ERROR_BYTES);
            (self.make_string)(string.as_mut_ptr().cast(), text.as_ptr(), text.as_ptr().cast());
            (self.make_error)(error, place, string.as_mut_ptr().cast());
            error.cast::<*const *mut c_void>().write(self.table.add(2));
            Leave {
                function: self.throw,
                arguments: [error, *self.table.add(1), *self.table.add(2), null_mut()],
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_pytorch_would() {
        let refusal = Refusal {
            held: (3 << 30, 4 << 30),
            memory: Some((1 << 20, 5 << 30)),
            ..Refusal::new(20 << 20, 1, OUT_OF_MEMORY)
        };
        assert_eq!(
            refusal.text(),
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 5.00 GiB of which 1.00 MiB is \
             free. Of the memory of gpumemtrace's allocator 3.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved but \
             unallocated."
        );
        assert!(Refusal::new(512, 0, Failure(700)).text().ends_with("the driver answered 700"));
    }
}
