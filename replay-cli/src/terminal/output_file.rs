//! Files that a command writes: complete, or not there.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

use super::escape::escape_path;
use super::format::put_line;
use super::stdout::print_text;
use super::units::format_bytes;

/// A path where no file can be written, as one sentence.
#[derive(Debug)]
pub(crate) struct UnusablePath(String);

impl std::fmt::Display for UnusablePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnusablePath {}

/// A new file. It takes its name when it is finished; before, an existing file stays as it was.
pub(crate) struct OutputFile {
    out: BufWriter<NamedTempFile>,
    path: PathBuf,
    written_bytes: u64,
}

impl OutputFile {
    /// Begins a file in the folder of `path`.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let file = tempfile::Builder::new()
            .prefix(".gpumemtrace-")
            .tempfile_in(folder.unwrap_or(Path::new(".")))
            .map_err(|error| cannot_write(&describe_error(path), hide_temporary_name(error)))?;
        Ok(Self { out: BufWriter::with_capacity(1 << 16, file), path: path.to_owned(), written_bytes: 0 })
    }

    /// Gives the file its name. Returns its size.
    pub(crate) fn finish(self) -> anyhow::Result<u64> {
        let error = |error| cannot_write(&describe_error(&self.path), error);
        let file = self.out.into_inner().map_err(io::IntoInnerError::into_error).map_err(error)?;
        let file = file.persist(&self.path).map_err(|failed| error(failed.error))?;
        make_readable(&file);
        Ok(self.written_bytes)
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.written_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes a whole file. If that fails, an existing file stays as it was. Returns its size.
pub(crate) fn fill_file(path: &Path, text: &str) -> anyhow::Result<u64> {
    let mut file = OutputFile::create(path)?;
    file.write_all(text.as_bytes()).with_context(|| describe_error(path))?;
    file.finish()
}

/// Prints the name and the size of an output.
pub(crate) fn print_output(path: &Path, written_bytes: u64) -> anyhow::Result<()> {
    let mut message = String::new();
    let size = format_bytes(written_bytes);
    put_line(&mut message, format_args!("{} ({size})", escape_path(path)));
    print_text(&message)
}

/// Removes the path of a temporary file from an error: its random name says nothing to the user.
pub(crate) fn hide_temporary_name(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((cause, _)) => io::Error::new(error.kind(), cause),
        None => error,
    }
}

/// The error of a file that cannot be written. A wrong path is wrong usage; a full disk is not.
pub(crate) fn cannot_write(what: &str, error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::ReadOnlyFilesystem => UnusablePath(format!("{what}: {error}")).into(),
        _ => anyhow::Error::new(error).context(what.to_owned()),
    }
}

fn describe_error(path: &Path) -> String {
    format!("cannot write {}; choose another file with --output", path.display())
}

/// Temporary files are private; an output is as readable as any new file.
#[cfg(unix)]
fn make_readable(file: &std::fs::File) {
    use std::os::unix::fs::PermissionsExt as _;
    let _ = file.set_permissions(std::fs::Permissions::from_mode(0o644));
}

#[cfg(not(unix))]
fn make_readable(_: &std::fs::File) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_no_random_name() {
        let folder = tempfile::tempdir().unwrap();
        let error = OutputFile::create(&folder.path().join("none/page.html")).err().expect("no such folder");
        let text = format!("{error:#}");
        assert!(text.ends_with("--output: No such file or directory (os error 2)"), "{text}");
    }
}
