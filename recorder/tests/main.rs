//! Tests of whole recordings, of the unwinder, and of the files that a kill leaves.

mod held_locks;
mod lifecycle;
mod native;
mod native_oracle;
mod ring_kill;
mod scenarios;
mod support;

/// The test that [`support::command`] starts in a process of its own.
#[test]
fn scenario() {
    if let Some(name) = support::requested_scenario() {
        scenarios::run_scenario(&name);
    }
}
