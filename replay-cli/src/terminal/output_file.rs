//! The files that commands write. All of them are written here, by the same rules:
//! * a file is complete, or not there: it takes its name when it is finished;
//! * the umask decides who may read it;
//! * an existing file is replaced if it is empty, if an earlier run of the same command wrote it,
//!   or with `--force`. A link stays, and its target is replaced;
//! * a trace is replaced by a symbolized one only: it may be the input, or all that is left of a
//!   run;
//! * a device or a pipe, such as `/dev/stdout`, is written to.
//!
//! An output is recognized by an extended attribute, which stays when the file is moved, or by how
//! its format begins.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read as _, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use gpumemtrace_format::block::FILE_MAGIC;
use tempfile::NamedTempFile;

use super::escape::escape_path;
use super::format::put_line;
use super::stdout::print_text;
use super::units::format_bytes;
use crate::exit::UsageError;

/// The extended attribute of our outputs. Its value is the kind of the output.
const MARK: &str = "user.gpumemtrace.output";
/// Permissions of an output, before the umask.
const MODE: u32 = 0o666;
/// Longest kind in bytes.
const MAX_KIND: usize = 64;

/// How outputs of some kinds begin, whatever run they are of. They are recognized without the
/// attribute, which file systems and copies may lack.
const BEGINNINGS: &[(&str, &str)] = &[
    (
        "html",
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-",
    ),
    ("csv-sites", "trace,rank,layer,device,site,"),
    ("csv-timeline", "trace,rank,device,begin_ns,end_ns,step,"),
    ("torch-snapshot-json", "{\"gpumemtrace\":{"),
];

/// The kind of budgets, which users edit: never replaced without `--force`.
pub(crate) const BUDGET: &str = "budget";
/// The kind of symbolized traces: never replaced without `--force`.
pub(crate) const TRACE: &str = "trace";

fn is_kept(kind: &str) -> bool {
    [BUDGET, TRACE].contains(&kind)
}

/// A path where no file can be written, as one sentence.
#[derive(Debug)]
pub(crate) struct UnusablePath(String);

impl std::fmt::Display for UnusablePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnusablePath {}

/// A path that may be written to.
#[derive(Debug)]
pub(crate) struct OutputPath {
    /// The path without links, as far as it exists.
    path: PathBuf,
    kind: &'static str,
    state: State,
    /// Permissions of a new file, before the umask.
    mode: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is at the path; what appears there meanwhile is kept.
    Free,
    /// A file that may be replaced.
    Replaceable,
    /// A device or a pipe.
    Stream,
}

impl OutputPath {
    /// As [`claim`](Self::claim), for a path that the user has named: its folder must exist.
    pub(crate) fn claim_named(path: &Path, kind: &'static str, replaces: bool) -> anyhow::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        match folder.and_then(|folder| folder.metadata().err()) {
            Some(error) => Err(cannot_write(&describe_error(path), error)),
            None => Self::claim(path, kind, replaces),
        }
    }

    /// Decides whether an output of this kind may be written to a path. Commands ask before they
    /// read anything, which may take minutes.
    ///
    /// # Errors
    ///
    /// The path is a folder, or has a file that is kept.
    pub(crate) fn claim(path: &Path, kind: &'static str, replaces: bool) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            let why = "- is no name of a file here; write to /dev/stdout for the standard output";
            return Err(UsageError(why.to_owned()).into());
        }
        let free = |path: &Path| Self { path: path.to_owned(), kind, state: State::Free, mode: MODE };
        // Whatever prevents a look at the path prevents writing, which says why.
        let Ok(entry) = path.symlink_metadata() else { return Ok(free(path)) };
        let refuse = |why: &str| {
            let name = path.display();
            anyhow::Error::from(UsageError(format!("{name} {why}; name another file, or add --force")))
        };
        let Ok(facts) = path.metadata() else {
            if entry.is_symlink() && !replaces {
                return Err(refuse("is a link to a file that does not exist"));
            }
            return Ok(Self { path: path.to_owned(), kind, state: State::Replaceable, mode: MODE });
        };
        if facts.is_dir() {
            let error = io::Error::from(ErrorKind::IsADirectory);
            return Err(cannot_write(&describe_error(path), error));
        }
        // The shell may have redirected it to a file, which is the shell's.
        if !facts.is_file() || path == Path::new("/dev/stdout") {
            return Ok(Self { path: path.to_owned(), kind, state: State::Stream, mode: MODE });
        }
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if replaces && kind != TRACE && begins_with(&path, &FILE_MAGIC) {
            let name = path.display();
            return Err(UsageError(format!("{name} is a trace, which is kept; name another file")).into());
        }
        if !replaces && facts.len() > 0 && !is_output(&path, kind) {
            let by = if is_kept(kind) { "" } else { ", and gpumemtrace cannot tell that it wrote it" };
            return Err(refuse(&format!("already exists{by}")));
        }
        Ok(Self { path, kind, state: State::Replaceable, mode: MODE })
    }

    /// Begins the file, in the folder of the path.
    pub(crate) fn begin(self) -> anyhow::Result<OutputFile> {
        let error = |error| cannot_write(&describe_error(&self.path), hide_temporary_name(error));
        let sink = match self.state {
            State::Stream if self.path == Path::new("/dev/stdout") => {
                // Opened by name, a file would be written to from its begin.
                let stdout = std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned().map_err(error)?;
                Sink::Stream(File::from(stdout))
            }
            State::Stream => Sink::Stream(File::options().write(true).open(&self.path).map_err(error)?),
            State::Free | State::Replaceable => {
                let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let mut file = tempfile::Builder::new();
                #[cfg(unix)]
                file.permissions(std::os::unix::fs::PermissionsExt::from_mode(self.mode));
                let file = file.prefix(".gpumemtrace-").tempfile_in(folder.unwrap_or(Path::new(".")));
                Sink::Temporary(file.map_err(error)?)
            }
        };
        Ok(OutputFile { out: BufWriter::with_capacity(1 << 16, sink), at: self, written_bytes: 0 })
    }

    /// Writes the whole file. Returns its size.
    pub(crate) fn fill(self, bytes: &[u8]) -> anyhow::Result<u64> {
        let what = describe_error(&self.path);
        let mut file = self.begin()?;
        file.write_all(bytes).context(what)?;
        file.finish()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Only this user may read the file, as a trace.
    pub(crate) fn private(self) -> Self {
        Self { mode: 0o600, ..self }
    }

    /// True for a device or a pipe, which may be where messages go, too.
    pub(crate) fn is_stream(&self) -> bool {
        self.state == State::Stream
    }
}

/// An output that is being written. If it is dropped, an existing file stays as it was.
pub(crate) struct OutputFile {
    out: BufWriter<Sink>,
    at: OutputPath,
    written_bytes: u64,
}

enum Sink {
    Temporary(NamedTempFile),
    Stream(File),
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Temporary(file) => file.write(bytes),
            Self::Stream(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Temporary(file) => file.flush(),
            Self::Stream(file) => file.flush(),
        }
    }
}

impl OutputFile {
    /// The file itself, for an output with holes. `None` for a device or a pipe.
    pub(crate) fn sparse_file(&mut self) -> io::Result<Option<&mut File>> {
        self.out.flush()?;
        Ok(match self.out.get_mut() {
            Sink::Temporary(file) => Some(file.as_file_mut()),
            Sink::Stream(_) => None,
        })
    }

    /// Gives the file its name. Returns the number of bytes that were written.
    pub(crate) fn finish(self) -> anyhow::Result<u64> {
        let Self { out, at, written_bytes } = self;
        let error = |error| cannot_write(&describe_error(&at.path), error);
        let file = match out.into_inner().map_err(io::IntoInnerError::into_error).map_err(error)? {
            Sink::Stream(_) => return Ok(written_bytes),
            Sink::Temporary(file) => file,
        };
        mark_output(file.as_file(), at.kind);
        if at.state == State::Replaceable {
            file.persist(&at.path).map_err(|failed| error(failed.error))?;
            return Ok(written_bytes);
        }
        match file.persist_noclobber(&at.path) {
            Ok(_) => Ok(written_bytes),
            Err(failed) if failed.error.kind() == ErrorKind::AlreadyExists => {
                let name = at.path.display();
                Err(UsageError(format!(
                    "{name} was created by another program meanwhile; name another file, or add --force"
                ))
                .into())
            }
            // A file system without links, and without renames that replace nothing.
            Err(failed) if !at.path.exists() => {
                failed.file.persist(&at.path).map_err(|failed| error(failed.error))?;
                Ok(written_bytes)
            }
            Err(failed) => Err(error(failed.error)),
        }
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

/// Marks a file as an output. A file system without attributes lacks the mark.
fn mark_output(file: &File, kind: &str) {
    if !is_kept(kind) {
        let _ = rustix::fs::fsetxattr(file, MARK, kind.as_bytes(), rustix::fs::XattrFlags::empty());
    }
}

/// True if a command wrote this file as an output of this kind.
fn is_output(path: &Path, kind: &str) -> bool {
    if is_kept(kind) {
        return false;
    }
    let mut mark = [0; MAX_KIND];
    let length = rustix::fs::getxattr(path, MARK, &mut mark[..]).unwrap_or(0);
    if mark.get(..length) == Some(kind.as_bytes()) {
        return true;
    }
    let mut known = BEGINNINGS.iter().filter(|(known, _)| *known == kind);
    known.any(|(_, begin)| begins_with(path, begin.as_bytes()))
}

fn begins_with(path: &Path, begin: &[u8]) -> bool {
    let mut bytes = Vec::new();
    let length = begin.len() as u64;
    let read = File::open(path).and_then(|file| file.take(length).read_to_end(&mut bytes));
    read.is_ok() && bytes == begin
}

/// Prints the name and the size of an output.
pub(crate) fn print_output(path: &Path, written_bytes: u64) -> anyhow::Result<()> {
    let mut message = String::new();
    let size = format_bytes(written_bytes);
    put_line(&mut message, format_args!("{} ({size})", escape_path(path)));
    print_text(&message)
}

/// Removes the path of a temporary file from an error: its random name says nothing to the user.
fn hide_temporary_name(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((cause, _)) => io::Error::new(error.kind(), cause),
        None => error,
    }
}

/// The error of a file that cannot be written. A wrong path is wrong usage; a full disk is not.
fn cannot_write(what: &str, error: io::Error) -> anyhow::Error {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_folder_is_named_before_anything_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            OutputPath::claim_named(&folder.path().join("none/page.html"), "html", false).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.ends_with("--output: No such file or directory (os error 2)"), "{text}");
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        let mut output = OutputPath::claim(&path, "html", false).unwrap().begin().unwrap();
        output.write_all(b"page").unwrap();
        std::fs::write(&path, "mine").unwrap();
        assert!(output.finish().is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }
}
