//! Link arguments of the template.
//!
//! `simgpu-setup` rewrites the dynamic symbol table without moving any code -> no relocation may name a symbol that the template
//! defines (`-Bsymbolic`), a PT_NOTE header must exist to be turned into the load command of the new tables (`--build-id`), and the
//! dynamic section needs room for a SONAME and version definitions.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for arg in [
        "-Wl,-soname,libsimgpu-template.so",
        "-Wl,-Bsymbolic",
        "-Wl,-z,noexecstack",
        "-Wl,--build-id=sha1",
        "-Wl,--spare-dynamic-tags=12",
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
}
