use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn placeholders_are_replaced() {
    let names = PatternValues { pid: 7, rank: "3".into(), host: "node".into() };
    assert_eq!(names.expand("run.%p.rank%r@%h.%%.%x%"), "run.7.rank3@node.%.%x%");
}

#[test]
fn finished_trace_is_moved_aside_with_its_ring() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    std::fs::write(&path, b"gpumtrc\nfirst").unwrap();
    std::fs::write(ring_path(&path), "ring of first").unwrap();
    let output = reserve(&path, 1).unwrap();
    assert_eq!(output.path, path);
    let aside = folder.path().join("run.1.trace");
    assert_eq!(std::fs::read(&aside).unwrap(), b"gpumtrc\nfirst");
    assert_eq!(std::fs::read(ring_path(&aside)).unwrap(), b"ring of first");
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

#[test]
fn file_that_is_not_a_trace_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes.txt");
    std::fs::write(&notes, "mine").unwrap();
    let output = reserve(&notes, 7).unwrap();
    assert_eq!((output.path, output.is_wanted_name_foreign), (folder.path().join("notes.7.txt"), true));
    assert_eq!(std::fs::read(&notes).unwrap(), b"mine");

    let device = folder.path().join("device");
    let device_c = std::ffi::CString::new(device.as_os_str().as_bytes()).unwrap();
    // SAFETY: makes a FIFO under a NUL-terminated name.
    assert_eq!(unsafe { libc::mkfifo(device_c.as_ptr(), 0o600) }, 0);
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    for name in ["device", "folder"] {
        let error = reserve(&folder.path().join(name), 7).unwrap_err();
        assert!(error.to_string().contains("not a file"), "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5, "no other file is left");
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
    assert!(matches!(move_aside(&path).unwrap(), MoveAside::NameIsFree));
    let aside = with_suffix(&path, "2");
    assert_eq!(std::fs::read(ring_path(&aside)).unwrap(), b"ring");
    assert!(aside.exists() && !path.exists());
}

#[test]
fn files_are_private_and_symlinks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let precious = folder.path().join("precious");
    std::fs::write(&precious, "mine").unwrap();
    symlink(&precious, &path).unwrap();
    assert!(reserve(&path, 1).is_err(), "a symlink must not be followed");
    assert_eq!(std::fs::read(&precious).unwrap(), b"mine");

    let output = reserve(&folder.path().join("other.trace"), 1).unwrap();
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
        assert!(output.path.exists() && ring_path(&output.path).exists());
    }
}
