//! Link arguments of the template.
//!
//! `simgpu-setup` rewrites the dynamic symbol table without moving code. So no relocation may name
//! a symbol of the template (`-Bsymbolic`), and a PT_NOTE header must exist to be reused
//! (`--build-id`).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for arg in
        ["-Wl,-soname,libsimgpu-template.so", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack", "-Wl,--build-id=sha1"]
    {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
}
