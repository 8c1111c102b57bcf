//! Link settings of the library.
//!
//! `nodelete`: threads may be inside a hook at any time, so the library must never be unloaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Our own references to an exported name (the hook tables) must mean our function, wherever we are loaded. (All that is exported
    // are functions, so `-Bsymbolic-functions` would be the same; but not every linker knows it.)
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpumemtrace.so");
}
