//! Runs of random allocations, frees and pauses.

use gpumemtrace_format::NodeId;

use super::Synthetic;

/// A run of seven lines. Each choice has what happens, the line, and the size or the block to free.
/// Without a pause each choice is an allocation or a free.
pub fn random_run(choices: &[(u8, u8, u16)], pause_ns: u64) -> Synthetic {
    let mut run = Synthetic::new();
    let mut live: Vec<u64> = Vec::new();
    for (what, line, size) in choices {
        let stack = run.frame(NodeId::NONE, "/work/a.py", "f", i32::from(line % 7) + 1);
        if *what < 100 && !live.is_empty() {
            let addr = live.swap_remove(usize::from(*size) % live.len());
            run.release(addr, stack);
        } else if *what == 255 && pause_ns > 0 {
            run.time_ns += pause_ns;
        } else {
            live.push(run.alloc(stack, u64::from(*size) * 700));
        }
    }
    run
}
