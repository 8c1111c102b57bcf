//! Words of a thread's own, found without a call.
//!
//! Constraint: Rust's thread-local variables in a shared library are found through a call into the loader, several times an
//! event. Consequence: on x86-64 Linux ours lie in the library's static thread-local block, at a distance from the thread
//! pointer that the loader writes down once (the "initial exec" model of the ELF specification for thread-local storage; the
//! compiler's option for it is not stable). The block is part of what the loader gives a process when it starts; a library
//! that is opened late takes it from a reserve of glibc, of which these few words are a small part. Elsewhere: the
//! language's own variables.

/// Declares a function that runs a closure with a reference to a value of the calling thread's own.
///
/// The value must be the one that zero bytes are, and the symbol unique.
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

        // Also where it is not needed: it must not go stale.
        const _: $type = $first;

        $(#[$attribute])*
        #[inline(always)]
        #[allow(clippy::inline_always, reason = "two instructions")]
        $visibility fn $name<R>(body: impl FnOnce(&$type) -> R) -> R {
            const { assert!(align_of::<$type>() <= 16 && !core::mem::needs_drop::<$type>()) };
            #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
            {
                let here: *const $type;
                // SAFETY: the symbol is the one defined above; the word at fs:0 is the thread pointer (x86-64 ABI).
                unsafe {
                    core::arch::asm!(
                        concat!("mov {here}, qword ptr [rip + ", $symbol, "@gottpoff]"),
                        "add {here}, qword ptr fs:[0]",
                        here = out(reg) here,
                        options(pure, readonly, nostack),
                    );
                }
                // SAFETY: as large and aligned as the type, zero at first, and only this thread's.
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
