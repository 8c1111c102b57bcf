//! The commit of the program's checkout, so that runs of one version can be found.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

/// The variable that the recorder reads.
pub(crate) const VARIABLE: &str = "GPUMEMTRACE_GIT_COMMIT";

/// The commit that is checked out in this folder; `None` outside a checkout, or without git.
/// Local changes are not seen.
pub(crate) fn commit_of(folder: &Path) -> Option<OsString> {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(["rev-parse", "--verify", "--quiet", "HEAD"]);
    let output = git.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?;
    let is_hash = !commit.trim().is_empty() && commit.trim().bytes().all(|byte| byte.is_ascii_hexdigit());
    (output.status.success() && is_hash).then(|| commit.trim().into())
}
