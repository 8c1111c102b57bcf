//! Reads leak candidates for the traced program, which asks for them over a Unix socket.
//!
//! The program must not get child processes that it did not start, so it cannot run
//! `gpumemtrace leak-candidates` itself while it works. A client sends its time limit in
//! milliseconds, a newline and the path of its trace, and gets the output of that command.

use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{ffi::OsString, fs};

use tempfile::TempDir;

/// The socket's name in its folder.
const SOCKET_NAME: &str = "socket";
/// Longest path that a socket address holds on every system.
const MAX_SOCKET_PATH: usize = 103;
/// Longest request that a client may send.
const MAX_REQUEST: u64 = 64 << 10;
/// How often a reading process is checked for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A listening socket with a thread for each client; ends when dropped.
pub(super) struct CandidateServer {
    path: PathBuf,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// A folder with a shorter path, if that of the first folder is too long for a socket.
    _short_folder: Option<TempDir>,
}

impl CandidateServer {
    /// Starts listening in `folder`, which only this user can open. `command` is this executable.
    pub(super) fn start(folder: &Path, command: PathBuf) -> io::Result<Self> {
        let mut path = folder.join(SOCKET_NAME);
        let mut short_folder = None;
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            let private = fs::Permissions::from_mode(0o700);
            let folder =
                tempfile::Builder::new().prefix("gpumemtrace-").permissions(private).tempdir_in("/tmp")?;
            path = folder.path().join(SOCKET_NAME);
            short_folder = Some(folder);
        }
        let listener = UnixListener::bind(&path)?;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let thread = std::thread::Builder::new()
            .name("holders".to_owned())
            .spawn(move || serve(&listener, &command, &stopped))?;
        Ok(Self { path, is_stopped, thread: Some(thread), _short_folder: short_folder })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for CandidateServer {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Wakes the thread if it waits for a client.
        let has_woken = UnixStream::connect(&self.path).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| has_woken) {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(listener: &UnixListener, command: &Path, is_stopped: &AtomicBool) {
    std::thread::scope(|scope| {
        while let Ok((client, _)) = listener.accept() {
            if is_stopped.load(Ordering::Relaxed) {
                return;
            }
            // A client that is gone needs no answer.
            scope.spawn(move || answer(client, command, is_stopped).is_ok());
        }
    });
}

fn answer(mut client: UnixStream, command: &Path, is_stopped: &AtomicBool) -> io::Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(1)))?;
    client.set_write_timeout(Some(Duration::from_secs(5)))?;
    let mut request = Vec::new();
    io::Read::by_ref(&mut client).take(MAX_REQUEST).read_to_end(&mut request)?;
    let (limit, trace) = parse_request(request).ok_or(io::ErrorKind::InvalidData)?;
    let mut reader = Command::new(command)
        .arg("leak-candidates")
        .arg("--")
        .arg(trace)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A key pressed in the terminal is for the program.
        .process_group(0)
        .spawn()?;
    let streams = (reader.stdout.take(), reader.stderr.take());
    let output = std::thread::spawn(move || {
        let (mut text, mut message) = (Vec::new(), Vec::new());
        if let (Some(mut stdout), Some(mut stderr)) = streams {
            let _ = stdout.read_to_end(&mut text);
            let _ = stderr.read_to_end(&mut message);
        }
        if text.is_empty() { message } else { text }
    });
    wait_or_kill(&mut reader, limit, is_stopped)?;
    let text = output.join().unwrap_or_default();
    client.write_all(&text)
}

/// The time limit and the path of the trace; `None` if malformed.
fn parse_request(mut request: Vec<u8>) -> Option<(Duration, OsString)> {
    let end = request.iter().position(|byte| *byte == b'\n')?;
    let path = request.split_off(end + 1);
    let limit = std::str::from_utf8(&request[..end]).ok()?.parse().ok()?;
    Some((Duration::from_millis(limit), OsString::from_vec(path)))
}

/// Waits for a reading process. Kills it at the time limit and at the end of the run.
fn wait_or_kill(reader: &mut Child, limit: Duration, is_stopped: &AtomicBool) -> io::Result<()> {
    let begun = Instant::now();
    while reader.try_wait()?.is_none() {
        if is_stopped.load(Ordering::Relaxed) || begun.elapsed() > limit {
            reader.kill()?;
            reader.wait()?;
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(server: &CandidateServer, text: &[u8]) -> String {
        let mut client = UnixStream::connect(server.path()).unwrap();
        client.write_all(text).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn client_gets_output_of_command_for_its_trace() {
        let folder = tempfile::tempdir().unwrap();
        let server = CandidateServer::start(folder.path(), PathBuf::from("/bin/echo")).unwrap();
        assert_eq!(ask(&server, b"90000\n/tmp/a b.trace"), "leak-candidates -- /tmp/a b.trace\n");
        assert_eq!(ask(&server, b"no number"), "");
        assert_eq!(ask(&server, b"90000\nother"), "leak-candidates -- other\n");
        let path = server.path().to_owned();
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn long_folder_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(120));
        fs::create_dir(&long).unwrap();
        let server = CandidateServer::start(&long, PathBuf::from("/bin/echo")).unwrap();
        assert_eq!(ask(&server, b"90000\nt"), "leak-candidates -- t\n");
        let short = server.path().parent().unwrap().to_owned();
        drop(server);
        assert!(!short.exists());
    }

    #[test]
    fn slow_reader_is_killed_at_time_limit_and_at_end_of_run() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("slow");
        fs::write(&script, "#!/bin/sh\nexec sleep 100\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
        let begun = Instant::now();
        let server = CandidateServer::start(folder.path(), script).unwrap();
        assert_eq!(ask(&server, b"50\nt"), "");
        let mut waiting = UnixStream::connect(server.path()).unwrap();
        waiting.write_all(b"90000\nt").unwrap();
        waiting.shutdown(std::net::Shutdown::Write).unwrap();
        drop(server);
        assert!(begun.elapsed() < Duration::from_secs(50));
    }
}
