//! Link arguments of `libcuda.so.1`.
//!
//! A preloaded tracer defines some of our exported names. `-Bsymbolic` binds the driver's own
//! references to the driver.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for arg in ["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack"] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
}
