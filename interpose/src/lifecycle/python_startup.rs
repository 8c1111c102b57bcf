//! Offers the `gpumemtrace` package of `gpumemtrace run` to each Python process.
//!
//! `PYTHONPATH` is the only way to run code at the start of a Python without changing its files.
//! If `run` set it, then each program, and all that it starts, would see another value. So `run`
//! sets a variable of its own, and our constructor adds a folder to `PYTHONPATH` inside a process
//! that is a Python. The first module in that folder removes it again, before the program's code
//! (`python/gpumemtrace/_run/sitecustomize.py` of the package).

use std::ffi::{CStr, OsString, c_char, c_int};
use std::path::Path;

/// The folder that `run` made.
const PACKAGE: &str = "GPUMEMTRACE_PACKAGE";
/// The folder in it that has `sitecustomize.py`.
const STARTUP: &str = "startup";

/// Adds the folder to `PYTHONPATH`, if this process is a Python that will remove it.
///
/// # Safety
///
/// The arguments are those of the process.
pub(super) unsafe fn offer_package(count: c_int, arguments: *const *const c_char) -> Option<()> {
    let folder = std::env::var_os(PACKAGE).filter(|folder| !folder.is_empty())?;
    let program = std::fs::read_link("/proc/self/exe").ok()?;
    if !is_python(program.file_name()?.as_encoded_bytes()) {
        return None;
    }
    // SAFETY: `arguments` has `count` strings.
    let words = (1..usize::try_from(count).ok()?).map(|at| unsafe { CStr::from_ptr(*arguments.add(at)) });
    if skips_startup(words.map(CStr::to_bytes)) {
        return None;
    }
    let startup = Path::new(&folder).join(STARTUP);
    // A process may outlive `run`, which removes the folder.
    if !startup.join("sitecustomize.py").is_file() {
        return None;
    }
    // The constructor of another preloaded library may have started a thread.
    if std::fs::read_dir("/proc/self/task").ok()?.count() != 1 {
        return None;
    }
    let old = std::env::var_os("PYTHONPATH").filter(|path| !path.is_empty());
    // SAFETY: no other thread exists that could read the environment, see above.
    unsafe { std::env::set_var("PYTHONPATH", prepend(startup.into_os_string(), old)) };
    Some(())
}

fn prepend(mut folder: OsString, old: Option<OsString>) -> OsString {
    if let Some(old) = old {
        folder.push(":");
        folder.push(old);
    }
    folder
}

/// True for the file name of a CPython 3: `python`, `python3.13`, `python3.14t`.
fn is_python(name: &[u8]) -> bool {
    let version = name.strip_prefix(b"python");
    version.is_some_and(|version| {
        !version.starts_with(b"2") && version.iter().all(|byte| b"0123456789.td".contains(byte))
    })
}

/// True if a Python with these arguments ignores `PYTHONPATH` (`-E`, `-I`), or imports no
/// `sitecustomize` (`-S`). See <https://docs.python.org/3/using/cmdline.html>.
fn skips_startup<'a>(mut arguments: impl Iterator<Item = &'a [u8]>) -> bool {
    while let Some(argument) = arguments.next() {
        let Some(letters) = argument.strip_prefix(b"-").filter(|letters| !letters.is_empty()) else {
            return false; // The program, or `-` for stdin.
        };
        if let Some(long) = letters.strip_prefix(b"-") {
            if long == b"check-hash-based-pycs" {
                arguments.next();
            }
            continue;
        }
        for (at, letter) in letters.iter().enumerate() {
            match letter {
                b'E' | b'I' | b'S' => return true,
                // The rest is the program.
                b'c' | b'm' => return false,
                b'W' | b'X' => {
                    if at + 1 == letters.len() {
                        arguments.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cpython_3_is_a_python() {
        for name in ["python", "python3", "python3.13", "python3.14t", "python3.12d"] {
            assert!(is_python(name.as_bytes()), "{name}");
        }
        for name in ["bash", "python2.7", "pythonw", "python3-config", "pypy3", "ipython"] {
            assert!(!is_python(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn options_that_skip_startup_are_recognized() {
        let skips = |line: &str| skips_startup(line.split_whitespace().map(str::as_bytes));
        for line in ["-I train.py", "-E -m train", "-uS -c pass", "-W error -I x.py", "-X dev -BE x.py"] {
            assert!(skips(line), "{line}");
        }
        for line in [
            "",
            "train.py -I",
            "-m train -E",
            "-cI",
            "- -S",
            "-W error::ImportWarning x.py",
            "-WError x.py -I",
            "-Ximporttime x.py",
            "--check-hash-based-pycs always x.py -I",
            "-u -s -P x.py",
        ] {
            assert!(!skips(line), "{line}");
        }
    }

    #[test]
    fn folder_comes_before_the_old_path() {
        assert_eq!(prepend("/f".into(), None), "/f");
        assert_eq!(prepend("/f".into(), Some("/a:/b".into())), "/f:/a:/b");
    }
}
