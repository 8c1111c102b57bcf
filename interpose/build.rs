//! Link settings of the library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let arguments: &[&str] = if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("macos") {
        // Whoever is linked to it finds it beside itself. What keeps it loaded is `src/started/mac.rs`.
        &["-Wl,-install_name,@rpath/libgpumemtrace.dylib"]
    } else {
        // `nodelete`: threads may be inside a hook at any time, so the library must never be unloaded.
        // `-Bsymbolic`: our own references to an exported name (the hook tables) must mean our function, wherever we are loaded. (All
        // that is exported are functions, so `-Bsymbolic-functions` would be the same; but not every linker knows it.)
        &["-Wl,-z,nodelete", "-Wl,-Bsymbolic", "-Wl,-soname,libgpumemtrace.so"]
    };
    for argument in arguments {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
