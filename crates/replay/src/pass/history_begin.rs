//! The begin of the recorded history, after events about memory from before it.
//!
//! Only traces of PyTorch snapshots begin with such events.

use gpumemtrace_format::Event;
use gpumemtrace_format::event::FLAG_EXISTED;

use super::ReplayPass;
use super::records::Records;

impl ReplayPass {
    /// Applies a slice that may begin with events about memory from before the recording.
    #[cold]
    pub(super) fn on_first_slice(&mut self, events: &[Event]) {
        let existed = |event: &Event| event.flags & FLAG_EXISTED != 0 && !event.kind.is_driver_call();
        let count = events.iter().take_while(|event| existed(event)).count();
        let (before, after) = events.split_at(count);
        self.on_slice_in_scope(before);
        if let Some(first) = after.first() {
            self.clock.now.time_ns = self.clock.now.time_ns.max(first.time_ns);
            self.begin_history();
            self.begin_first_step();
            self.on_slice(after);
        }
    }

    /// Takes the snapshots of step 0, and begins the scope if it is that of step 0: both are before
    /// the first event.
    fn begin_first_step(&mut self) {
        let (Records { snapshots, .. }, mut present) = self.split_records();
        let due = snapshots.schedule.take_due_at_step(0);
        snapshots.take(&due, &mut present);
        self.on_step_begin();
    }

    /// Begins the recorded history with the memory that existed before it.
    pub(super) fn begin_history(&mut self) {
        self.awaits_history = false;
        self.accounts.begin_history(self.clock.now.time_ns);
    }
}
