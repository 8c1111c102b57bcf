//! Linker arguments of the library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let arguments: &[&str] = if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("macos") {
        // Programs that link to it find it next to themselves. `lifecycle::macos::prevent_unload`
        // keeps it loaded.
        &["-Wl,-install_name,@rpath/libgpumemtrace.dylib"]
    } else {
        // `nodelete`: threads may be inside a hook at any time, so the library is never unloaded.
        // `-Bsymbolic`: references to our own exported names (the hook tables) bind to our own
        // functions. Only functions are exported, so `-Bsymbolic-functions` would do the same, but
        // not every linker supports it.
        &["-Wl,-z,nodelete", "-Wl,-Bsymbolic", "-Wl,-soname,libgpumemtrace.so"]
    };
    for argument in arguments {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
