//! Link arguments of `libcuda.so.1`.
//!
//! A tracer that is preloaded defines some of our exported names; without `-Bsymbolic` the driver's own references would bind to the
//! tracer -> every reference inside the library is bound at link time.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for arg in ["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack"] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
}
