//! Checks of the machine: the recorder library, the output folder, resource limits.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::live_test::output_with_timeout;
use super::{CheckVerdict, DoctorCheck};
use crate::launch::library::{check_preloadable, find_library};
use crate::launch::platform::Platform;
use crate::terminal::escape::escape_path;

/// The size of a ring file for 96 threads, and the least space that a trace needs.
const MIN_FREE_BYTES: u64 = 64 << 20;

/// Finds the library and preloads it into a program; `None` if that fails.
pub(super) fn check_library(checks: &mut Vec<DoctorCheck>) -> Option<PathBuf> {
    let mut add = |verdict, says: String| checks.push(DoctorCheck::new("library", verdict, says));
    let library = match find_library() {
        Ok(library) => library,
        Err(error) => {
            add(CheckVerdict::Failed, error.to_string());
            return None;
        }
    };
    let shown = escape_path(&library);
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
        Ok(true) => add(CheckVerdict::Ok, format!("{shown} can be preloaded")),
        Ok(false) => {
            add(
                CheckVerdict::Failed,
                format!(
                    "{} does not load {shown}: it is built for another system, or the loader ignores the variable",
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

/// Checks the folder of the trace and the file-size limit.
pub(super) fn check_output(output: Option<&Path>, checks: &mut Vec<DoctorCheck>) {
    let pattern = output
        .map(Path::to_owned)
        .or_else(|| std::env::var_os("GPUMEMTRACE_OUTPUT").map(PathBuf::from))
        .unwrap_or_else(|| PathBuf::from("run.trace"));
    let path = std::env::current_dir().map(|here| here.join(&pattern)).unwrap_or(pattern);
    let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
    let shown = escape_path(&folder);
    checks.push(match check_folder(&folder) {
        Ok(says) => DoctorCheck::new("output folder", CheckVerdict::Ok, format!("{shown}: {says}")),
        Err(why) => {
            let todo = "set GPUMEMTRACE_OUTPUT to a file in another folder";
            DoctorCheck::new("output folder", CheckVerdict::Failed, format!("{shown}: {why}; {todo}"))
        }
    });
    let limit = getrlimit(Resource::Fsize).current;
    if let Some(limit) = limit.filter(|limit| *limit < MIN_FREE_BYTES) {
        let says = format!("{limit} bytes are too few to record anything; raise the limit with ulimit -f");
        checks.push(DoctorCheck::new("file-size limit", CheckVerdict::Failed, says));
    }
}

/// Creates a file, allocates its blocks and maps it, as the recorder does with its ring file.
fn check_folder(folder: &Path) -> Result<String, String> {
    let file = tempfile::Builder::new()
        .prefix(".gpumemtrace-doctor-")
        .tempfile_in(folder)
        .map_err(|error| format!("cannot create a file there ({})", strip_os_error(&error)))?;
    super::probe::map_shared(file.as_file(), 1 << 20)
        .map_err(|error| format!("cannot allocate and map a file there ({})", strip_os_error(&error)))?;
    let facts =
        rustix::fs::statvfs(folder).map_err(|error| format!("cannot read its free space ({error})"))?;
    let free_bytes = facts.f_bavail.saturating_mul(facts.f_frsize);
    if free_bytes < MIN_FREE_BYTES {
        return Err(format!("only {} MiB are free", free_bytes >> 20));
    }
    Ok(format!("writable and mappable, {:.1} GiB free", free_bytes as f64 / (1u64 << 30) as f64))
}

/// The text of an error without its number and path.
fn strip_os_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).split(" at path").next().unwrap_or(&text).to_owned()
}
