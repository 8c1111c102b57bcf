use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn placeholders_are_replaced() {
    let names = PatternValues { pid: 7, rank: "3".into(), host: "node".into(), job: "36_2".into() };
    let expand = |pattern: &str| names.expand(pattern.as_ref());
    assert_eq!(expand("run.%p.rank%r@%h.%j.%%.%x%"), "run.7.rank3@node.36_2.%.%x%");
    let latin = OsStr::from_bytes(b"caf\xe9.%p.trace");
    assert_eq!(names.expand(latin).as_bytes(), b"caf\xe9.7.trace");
}

#[test]
fn finished_trace_is_moved_aside_with_its_ring() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    std::fs::write(&path, b"gpumtrc\nfirst").unwrap();
    std::fs::write(ring_path(&path), b"gpumtrr\nring of first").unwrap();
    let output = reserve(&path, 1).unwrap();
    assert_eq!(output.path, path);
    let aside = folder.path().join("run.1.trace");
    assert_eq!(std::fs::read(&aside).unwrap(), b"gpumtrc\nfirst");
    assert_eq!(std::fs::read(ring_path(&aside)).unwrap(), b"gpumtrr\nring of first");
    assert_eq!(std::fs::metadata(ring_path(&path)).unwrap().len(), 0);
    drop(output);
    reserve(&path, 1).unwrap();
    assert!(folder.path().join("run.2.trace").exists());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 6, "no temporary file is left");
}

#[test]
fn trace_of_live_process_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let first = reserve(&path, 1).unwrap();
    let second = reserve(&path, 42).unwrap();
    assert_eq!(second.path, folder.path().join("run.42.trace"));
    assert_eq!(first.path, path);
}

/// Puts an obstacle at a path.
type Place = fn(&Path);

fn c_path(path: &Path) -> std::ffi::CString {
    std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// What a name may belong to, and how the message describes it.
const OBSTACLES: &[(&str, Place)] = &[
    ("is a folder", |path| std::fs::create_dir(path).unwrap()),
    ("is a named pipe", |path| {
        // SAFETY: makes a FIFO under a NUL-terminated name.
        assert_eq!(unsafe { libc::mkfifo(c_path(path).as_ptr(), 0o600) }, 0);
    }),
    ("is a socket", |path| drop(std::os::unix::net::UnixListener::bind(path).unwrap())),
    ("is a symbolic link, which is not followed", |path| symlink("/nowhere", path).unwrap()),
    ("is a symbolic link, which is not followed", |path| symlink(path.parent().unwrap(), path).unwrap()),
    ("is not ", |path| std::fs::write(path, "mine").unwrap()),
];

#[test]
fn obstacle_at_either_name_moves_both_to_a_name_with_the_pid() {
    for (what, place) in OBSTACLES {
        for is_at_ring in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("run.trace");
            let taken = if is_at_ring { ring_path(&path) } else { path.clone() };
            place(&taken);
            let before = std::fs::symlink_metadata(&taken).unwrap().ino();
            let output = reserve(&path, 7).unwrap();
            assert_eq!(output.path, folder.path().join("run.7.trace"), "{what}");
            let obstacle = output.obstacle.unwrap();
            assert_eq!(obstacle.path, taken);
            assert!(obstacle.what.starts_with(what), "{}", obstacle.what);
            assert_eq!(std::fs::symlink_metadata(&taken).unwrap().ino(), before, "it is untouched");
            assert!(output.path.is_file() && ring_path(&output.path).is_file());
            let files = std::fs::read_dir(folder.path()).unwrap().count();
            assert_eq!(files, 3, "{what}: no other file is left");
        }
    }
}

#[test]
fn finished_trace_beside_an_obstacle_keeps_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    std::fs::write(&path, b"gpumtrc\nfirst").unwrap();
    std::fs::create_dir(ring_path(&path)).unwrap();
    let output = reserve(&path, 7).unwrap();
    assert_eq!(output.path, folder.path().join("run.7.trace"));
    assert_eq!(std::fs::read(&path).unwrap(), b"gpumtrc\nfirst");
    assert!(ring_path(&path).is_dir(), "a folder is not moved with the trace");
}

#[test]
fn ring_of_live_process_is_not_replaced_after_its_trace_was_renamed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let first = reserve(&path, 1).unwrap();
    std::fs::rename(&path, folder.path().join("kept.trace")).unwrap();
    let second = reserve(&path, 2).unwrap();
    assert_eq!(second.path, folder.path().join("run.2.trace"));
    assert_eq!(second.obstacle.unwrap().what, "is in use by another process");
    let at_name = std::fs::symlink_metadata(ring_path(&path)).unwrap().ino();
    assert_eq!(first.ring.metadata().unwrap().ino(), at_name);
    // Once the process has ended, its ring file is stale.
    drop(first);
    assert_eq!(reserve(&path, 3).unwrap().path, path);
}

#[test]
fn names_of_devices_and_streams_are_recognized() {
    for (path, expected) in [
        ("/dev/null", true),
        ("/dev/stdout", true),
        ("/dev/fd/3", true),
        ("/proc/self/fd/1", true),
        ("/dev/shm/run.trace", false),
        ("/home/dev/run.trace", false),
    ] {
        assert_eq!(is_in_system_folder(Path::new(path)), expected, "{path}");
    }
}

#[test]
fn repeated_pid_gets_a_random_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let outputs: Vec<ReservedOutput> = (0..3).map(|_| reserve(&path, 1).unwrap()).collect();
    assert_eq!(outputs[1].path, folder.path().join("run.1.trace"));
    assert!(outputs[2].path.file_name().unwrap().to_string_lossy().starts_with("run.1-"));
}

#[test]
fn moved_trace_keeps_its_ring_when_a_number_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    drop(reserve(&path, 1).unwrap());
    std::fs::write(ring_path(&path), "ring").unwrap();
    std::fs::write(ring_path(&with_suffix(&path, "1")), "a ring file without a trace").unwrap();
    assert!(move_aside(&path, true).unwrap());
    let aside = with_suffix(&path, "2");
    assert_eq!(std::fs::read(ring_path(&aside)).unwrap(), b"ring");
    assert!(aside.exists() && !path.exists());
}

#[test]
fn files_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let output = reserve(&folder.path().join("run.trace"), 1).unwrap();
    assert_eq!(output.trace.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(output.ring.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn hundred_concurrent_processes_get_different_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let outputs: Vec<ReservedOutput> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=100)
            .map(|pid| {
                scope.spawn({
                    let path = &path;
                    move || reserve(path, pid).unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut names: Vec<PathBuf> = outputs.iter().map(|output| output.path.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 100);
    for output in outputs {
        assert_eq!(output.obstacle, None);
        assert!(output.path.exists() && ring_path(&output.path).exists());
    }
}

#[test]
fn long_job_is_shortened_and_stays_distinct() {
    let [first, second] = ["a", "b"].map(|end| "ä".repeat(150) + end);
    assert!(short_job(&first).len() <= MAX_JOB_BYTES && short_job(&first).starts_with("ääää"));
    assert_ne!(short_job(&first), short_job(&second));
    assert_eq!(short_job("36_2-restart1"), "36_2-restart1");
}
