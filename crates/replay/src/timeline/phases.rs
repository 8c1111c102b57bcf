//! Named phases of the program (`gpumemtrace_phase_begin`): their peak and their net growth.
//!
//! Definitions. A phase lasts from its begin event to the end event of the same thread, or to the
//! end of the trace. It covers the whole process: allocations of all threads count. Nested phases
//! each count in full.
//! * Peak: the most allocated bytes at any moment of the phase, including bytes allocated before.
//! * Left bytes: allocated bytes at its end minus those at its begin, summed over all its turns.
//!   They are negative if the phase freed more than it allocated.
//!
//! Each block event costs one comparison per open phase. The tests below check all definitions.

use gpumemtrace_format::{CodeId, Event, EventKind, ThreadId};

use crate::ingest::definitions::Definitions;
use crate::util::seeded_map::SeededMap;

/// The usage of a phase on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PhaseUsage {
    /// Most allocated bytes at any moment.
    pub peak_bytes: u64,
    /// Allocated bytes at the end minus those at the begin, over all turns.
    pub left_bytes: i64,
}

/// All turns of the phases with one name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PhaseRecord {
    /// The name given by the program; empty if the trace lacks its definition.
    pub name: String,
    /// Number of begin events.
    pub turns: u64,
    /// Total duration of all turns.
    pub time_ns: u64,
    /// Devices with allocated bytes, by ascending ordinal.
    pub devices: Vec<(u8, PhaseUsage)>,
}

#[derive(Debug)]
struct OpenPhase {
    thread: ThreadId,
    /// Index of its record in [`PhaseTracker::all`].
    phase: usize,
    began_ns: u64,
    /// Allocated bytes by device at the begin.
    live_at_begin: SeededMap<u8, u64>,
}

/// Measures phases while the events of a run are replayed.
#[derive(Debug, Default)]
pub(crate) struct PhaseTracker {
    all: Vec<PhaseRecord>,
    by_name: SeededMap<String, usize>,
    open: Vec<OpenPhase>,
}

impl PhaseTracker {
    /// Handles a begin or end event. `live` has the allocated bytes of each device.
    pub(crate) fn on_phase_event(
        &mut self,
        event: &Event,
        time_ns: u64,
        definitions: &Definitions,
        live: impl Iterator<Item = (u8, u64)>,
    ) {
        if event.kind == EventKind::PHASE_BEGIN {
            let code = definitions.codes.get(&CodeId(event.aux[0] as u32));
            let name = code.map_or_else(String::new, |code| code.name.clone());
            let live_at_begin: SeededMap<u8, u64> = live.collect();
            let phase = self.begin_turn(name, &live_at_begin);
            let thread = thread_of_phase(event);
            self.open.push(OpenPhase { thread, phase, began_ns: time_ns, live_at_begin });
        } else if let Some(index) = self.open.iter().rposition(|open| open.thread == event.thread) {
            let open = self.open.remove(index);
            self.end_turn(&open, time_ns, live);
        }
    }

    /// Raises the peaks of all open phases to the allocated bytes of `device`.
    #[inline]
    pub(crate) fn on_live_bytes(&mut self, device: u8, bytes: u64) {
        for open in &self.open {
            let peak = &mut usage_on(&mut self.all[open.phase], device).peak_bytes;
            *peak = (*peak).max(bytes);
        }
    }

    /// Restarts the measurement for `--since`: open phases begin now, ended ones are dropped.
    #[cold]
    pub(crate) fn restart(&mut self, time_ns: u64, live: impl Iterator<Item = (u8, u64)>) {
        let before = std::mem::take(&mut self.all);
        self.by_name.clear();
        let live: SeededMap<u8, u64> = live.collect();
        let mut open_phases = std::mem::take(&mut self.open);
        for open in &mut open_phases {
            open.phase = self.begin_turn(before[open.phase].name.clone(), &live);
            (open.began_ns, open.live_at_begin) = (time_ns, live.clone());
        }
        self.open = open_phases;
    }

    /// Ends all open phases and returns the phases in the order of their first begin.
    pub(crate) fn finish(mut self, time_ns: u64, live: &[(u8, u64)]) -> Vec<PhaseRecord> {
        for open in std::mem::take(&mut self.open) {
            self.end_turn(&open, time_ns, live.iter().copied());
        }
        self.all
    }

    /// Counts a turn of the phase `name`; returns the index of the phase.
    fn begin_turn(&mut self, name: String, live: &SeededMap<u8, u64>) -> usize {
        let phase = *self.by_name.entry(name.clone()).or_insert_with(|| {
            self.all.push(PhaseRecord { name, ..PhaseRecord::default() });
            self.all.len() - 1
        });
        self.all[phase].turns += 1;
        for (device, bytes) in live {
            let peak = &mut usage_on(&mut self.all[phase], *device).peak_bytes;
            *peak = (*peak).max(*bytes);
        }
        phase
    }

    fn end_turn(&mut self, open: &OpenPhase, time_ns: u64, live: impl Iterator<Item = (u8, u64)>) {
        let phase = &mut self.all[open.phase];
        phase.time_ns = phase.time_ns.saturating_add(time_ns.saturating_sub(open.began_ns));
        for (device, bytes) in live {
            let before = open.live_at_begin.get(&device).copied().unwrap_or(0);
            let left = i64::try_from(i128::from(bytes) - i128::from(before)).unwrap_or(i64::MAX);
            let total = &mut usage_on(phase, device).left_bytes;
            *total = total.saturating_add(left);
        }
    }
}

/// The thread that will end the phase. For a phase that began before the recording, another thread
/// wrote the begin event: the one that started the recording.
pub(crate) fn thread_of_phase(event: &Event) -> ThreadId {
    if event.aux[1] == 0 { event.thread } else { ThreadId(event.aux[1] as u32) }
}

fn usage_on(phase: &mut PhaseRecord, device: u8) -> &mut PhaseUsage {
    let index = phase.devices.binary_search_by_key(&device, |(device, _)| *device).unwrap_or_else(|index| {
        phase.devices.insert(index, (device, PhaseUsage::default()));
        index
    });
    &mut phase.devices[index].1
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::CodeDef;

    fn definitions() -> Definitions {
        let mut definitions = Definitions::default();
        for (id, name) in [(1, "train"), (2, "eval"), (3, "eval")] {
            let code = CodeDef { id: CodeId(id), name: name.into(), ..CodeDef::default() };
            definitions.codes.insert(code.id, code);
        }
        definitions
    }

    fn begin(thread: u32, name: u64) -> Event {
        Event { thread: ThreadId(thread), aux: [name, 0], ..Event::new(EventKind::PHASE_BEGIN) }
    }

    fn end(thread: u32) -> Event {
        Event { thread: ThreadId(thread), ..Event::new(EventKind::PHASE_END) }
    }

    #[test]
    fn turns_of_one_name_are_summed_and_nested_phases_count_in_full() {
        let (definitions, mut phases) = (definitions(), PhaseTracker::default());
        let mut at = |event: Event, time: u64, live: u64| {
            phases.on_phase_event(&event, time, &definitions, [(0, live)].into_iter());
            phases.on_live_bytes(0, live + 50);
        };
        at(begin(1, 1), 10, 100);
        at(begin(1, 2), 20, 200);
        at(end(1), 30, 260);
        at(begin(2, 3), 40, 300);
        at(end(1), 50, 310);
        at(end(2), 60, 290);
        at(end(2), 70, 1000);
        let on = |peak_bytes, left_bytes| vec![(0, PhaseUsage { peak_bytes, left_bytes })];
        let found = phases.finish(99, &[(0, 5)]);
        assert_eq!(
            found,
            [
                PhaseRecord { name: "train".into(), turns: 1, time_ns: 40, devices: on(350, 210) },
                PhaseRecord { name: "eval".into(), turns: 2, time_ns: 30, devices: on(360, 50) },
            ]
        );
    }

    #[test]
    fn phase_begun_on_behalf_of_a_thread_is_ended_by_that_thread() {
        let (definitions, mut phases) = (definitions(), PhaseTracker::default());
        let begin_of_thread_7 = Event { aux: [1, 7], ..begin(1, 1) };
        phases.on_phase_event(&begin_of_thread_7, 10, &definitions, [(0, 5)].into_iter());
        phases.on_phase_event(&end(1), 20, &definitions, [(0, 5)].into_iter());
        phases.on_phase_event(&end(7), 30, &definitions, [(0, 6)].into_iter());
        assert_eq!(phases.finish(90, &[(0, 9)])[0].time_ns, 20);
    }

    #[test]
    fn phase_without_end_lasts_to_the_end_of_the_trace() {
        let (definitions, mut phases) = (definitions(), PhaseTracker::default());
        phases.on_phase_event(&begin(1, 9), 10, &definitions, [(3, 100)].into_iter());
        let found = phases.finish(90, &[(3, 40), (4, u64::MAX)]);
        assert_eq!((found[0].name.as_str(), found[0].time_ns), ("", 80));
        assert_eq!(found[0].devices[0], (3, PhaseUsage { peak_bytes: 100, left_bytes: -60 }));
        assert_eq!(found[0].devices[1].1.left_bytes, i64::MAX);
    }
}
