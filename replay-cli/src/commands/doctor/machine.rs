//! What the machine gives us: the library, the folder, the limits.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::live_test::output_with_timeout;
use super::{CheckVerdict, DoctorCheck};
use crate::launch::library::{check_preloadable, find_library};
use crate::launch::platform::Platform;

/// What the ring file may grow to (96 threads), and what a trace needs to be worth starting.
const ROOM_NEEDED_BYTES: u64 = 64 << 20;

/// Finds the library and loads it into a program of this machine.
pub(super) fn check_library(checks: &mut Vec<DoctorCheck>) -> Option<PathBuf> {
    let mut add = |verdict, says: String| checks.push(DoctorCheck::new("library", verdict, says));
    let library = match find_library() {
        Ok(library) => library,
        Err(error) => {
            add(CheckVerdict::Failed, error.to_string());
            return None;
        }
    };
    let shown = library.display();
    if let Err(error) = check_preloadable(&library, Platform::HOST) {
        add(CheckVerdict::Failed, error.to_string());
        return None;
    }
    let loads = |program: &OsStr| -> Result<bool, String> {
        let mut command = Command::new(program);
        command.args(["doctor-probe", "libraries"]).env(Platform::HOST.preload_variable(), &library);
        let output =
            output_with_timeout(command, Duration::from_secs(20)).map_err(|error| format!("{error:#}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).contains("libgpumemtrace"))
    };
    match std::env::current_exe().map_err(|error| error.to_string()).and_then(|me| loads(me.as_os_str())) {
        Ok(true) => add(CheckVerdict::Ok, format!("{shown} loads before other libraries")),
        Ok(false) => {
            add(
                CheckVerdict::Failed,
                format!(
                    "{shown} is not loaded by {} here: another system, or a loader that ignores it",
                    Platform::HOST.preload_variable()
                ),
            );
            return None;
        }
        Err(why) => {
            add(CheckVerdict::Failed, format!("{shown}: {why}"));
            return None;
        }
    }
    Some(library)
}

/// Looks at where the trace would go.
pub(super) fn check_output(output: Option<&Path>, checks: &mut Vec<DoctorCheck>) {
    let pattern = output
        .map(Path::to_owned)
        .or_else(|| std::env::var_os("GPUMEMTRACE_OUTPUT").map(PathBuf::from))
        .unwrap_or_else(|| PathBuf::from("run.trace"));
    let path = std::env::current_dir().map(|here| here.join(&pattern)).unwrap_or(pattern);
    let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
    checks.push(match check_folder(&folder) {
        Ok(says) => {
            DoctorCheck::new("output folder", CheckVerdict::Ok, format!("{}: {says}", folder.display()))
        }
        Err(why) => {
            let todo = "set GPUMEMTRACE_OUTPUT to a file in another folder";
            DoctorCheck::new(
                "output folder",
                CheckVerdict::Failed,
                format!("{}: {why}; {todo}", folder.display()),
            )
        }
    });
    let limit = getrlimit(Resource::Fsize).current;
    if let Some(limit) = limit.filter(|limit| *limit < ROOM_NEEDED_BYTES) {
        let says = format!("files may have {limit} bytes only; raise it (ulimit -f), or nothing is recorded");
        checks.push(DoctorCheck::new("file-size limit", CheckVerdict::Failed, says));
    }
}

/// Makes a file there, gives it room, and maps it as the recorder does.
fn check_folder(folder: &Path) -> Result<String, String> {
    let file = tempfile::Builder::new()
        .prefix(".gpumemtrace-doctor-")
        .tempfile_in(folder)
        .map_err(|error| format!("no file can be made there ({})", strip_os_error(&error)))?;
    super::probe::map_shared(file.as_file(), 1 << 20).map_err(|error| {
        format!("a file there cannot be mapped and given room ({})", strip_os_error(&error))
    })?;
    let facts = rustix::fs::statvfs(folder).map_err(|error| format!("its free room is unknown ({error})"))?;
    let free_bytes = facts.f_bavail.saturating_mul(facts.f_frsize);
    if free_bytes < ROOM_NEEDED_BYTES {
        return Err(format!("only {} MiB are free", free_bytes >> 20));
    }
    Ok(format!("writable, can be mapped, {:.1} GiB free", free_bytes as f64 / (1u64 << 30) as f64))
}

fn strip_os_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).split(" at path").next().unwrap_or(&text).to_owned()
}
