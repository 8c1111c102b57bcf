//! Thread-local words that are reached without a function call.
//!
//! Rust finds the thread-local variables of a shared library through a call into the loader, and an
//! event would make several of them. On x86-64 Linux our words lie in the library's static
//! thread-local block instead, at an offset from the thread pointer that the loader computes once.
//! This is the "initial exec" model of ELF thread-local storage; the compiler option for it is not
//! stable. A library that is loaded late takes its block from a reserve of glibc, which these few
//! words fit into. Other systems use Rust's own thread-local variables.

/// Declares a function that runs a closure with a reference to a thread-local value.
///
/// All zero bytes must be the value's initial state, and the symbol must be unique in the program.
#[macro_export]
macro_rules! per_thread {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident(&$type:ty) = $first:expr, $symbol:literal) => {
        #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
        core::arch::global_asm!(
            ".pushsection .tbss.gpumemtrace, \"awT\", @nobits",
            ".p2align 4",
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ", @object"),
            concat!(".size ", $symbol, ", {size}"),
            concat!($symbol, ":"),
            ".zero {size}",
            ".popsection",
            size = const size_of::<$type>(),
        );

        // Compiled on every system, so that the initial value cannot go stale.
        const _: $type = $first;

        $(#[$attribute])*
        #[inline(always)]
        #[allow(clippy::inline_always, reason = "two instructions")]
        $visibility fn $name<R>(body: impl FnOnce(&$type) -> R) -> R {
            const { assert!(align_of::<$type>() <= 16 && !core::mem::needs_drop::<$type>()) };
            #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
            {
                let here: *const $type;
                // SAFETY: the symbol is the one defined above; the word at fs:0 is the thread
                // pointer (x86-64 ABI).
                unsafe {
                    core::arch::asm!(
                        concat!("mov {here}, qword ptr [rip + ", $symbol, "@gottpoff]"),
                        "add {here}, qword ptr fs:[0]",
                        here = out(reg) here,
                        options(pure, readonly, nostack),
                    );
                }
                // SAFETY: as large and aligned as the type, zero at first, and visible to this
                // thread alone.
                body(unsafe { &*here })
            }
            #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
            {
                std::thread_local! {
                    static VALUE: $type = const { $first };
                }
                VALUE.with(body)
            }
        }
    };
}
