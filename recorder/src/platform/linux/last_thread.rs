//! Whether nobody is left in the process but our thread.
//!
//! Constraint: a program may end its first thread and leave the rest to others (`pthread_exit` in `main`); its end is then the end of
//! the last thread, and ours would be that. Consequence: the writer looks at each nap, and does then what the C library does
//! when the last thread ends. The first thread stays in the list until the process ends, as a dead one.

/// True if the calling thread is the only one that runs.
pub(crate) fn is_last_thread(pid: u32) -> bool {
    // Its directory is linked from each thread's, itself and its parent.
    // SAFETY: an all-zero stat is a valid buffer.
    let mut data: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a NUL-terminated name; the buffer is ours.
    let known = unsafe { libc::stat(c"/proc/self/task".as_ptr(), &raw mut data) } == 0;
    known && data.st_nlink == 2 + 2 && is_dead(pid)
}

fn is_dead(thread: u32) -> bool {
    let Ok(stat) = std::fs::read(format!("/proc/self/task/{thread}/stat")) else { return false };
    // `pid (name) state`, where the name may hold anything.
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2));
    matches!(state, Some(b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_runs_is_not_dead() {
        assert!(!is_dead(std::process::id()));
        assert!(!is_last_thread(std::process::id()));
    }
}
