//! Detects that all threads of the program have ended and only ours is left.
//!
//! A program may end its first thread and leave the rest to others (`pthread_exit` in `main`). The
//! process then ends with its last thread, and the writer thread would keep it alive. So the writer
//! checks at each nap, and ends the process as the C library would. A first thread that has ended
//! stays in `/proc/self/task` as a zombie until the process ends.

/// True if the calling thread is the only one that runs.
pub(crate) fn is_last_thread(pid: u32) -> bool {
    // The directory has two links of its own and one for each thread.
    // SAFETY: an all-zero stat is a valid buffer.
    let mut data: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a NUL-terminated name; the buffer is ours.
    let known = unsafe { libc::stat(c"/proc/self/task".as_ptr(), &raw mut data) } == 0;
    known && data.st_nlink == 2 + 2 && is_thread_dead(pid)
}

fn is_thread_dead(thread: u32) -> bool {
    let Ok(stat) = std::fs::read(format!("/proc/self/task/{thread}/stat")) else { return false };
    // The format is `pid (name) state`, and the name may contain any characters.
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2));
    matches!(state, Some(b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_thread_is_neither_dead_nor_last() {
        assert!(!is_thread_dead(std::process::id()));
        assert!(!is_last_thread(std::process::id()));
    }
}
