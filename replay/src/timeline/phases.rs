//! Parts of the run that the program gave names to (`gpumemtrace_phase_begin`): what was held while they lasted, what they left.
//!
//! Definitions. A phase lasts from its begin to the end that its thread says (a phase that is never ended, to the end of the
//! trace). It is the whole process's: what any thread does meanwhile counts. Of phases inside of one another each counts for itself.
//! * peak: most bytes held by tensors at any moment of it, what was held when it began included;
//! * left: bytes held by tensors at its end minus those at its begin, added up over all its turns; below 0 where it gave back.

use gpumemtrace_format::{CodeId, Event, EventKind, ThreadId};

use crate::ingest::definitions::Definitions;
use crate::util::seeded_map::SeededMap;

/// A phase on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PhaseUsage {
    /// Most bytes held by tensors.
    pub peak_bytes: u64,
    /// Bytes of tensors that were there at its end and not at its begin.
    pub left_bytes: i64,
}

/// All turns of a phase.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PhaseRecord {
    /// Its name; empty where the trace does not have it.
    pub name: String,
    /// How often it began.
    pub turns: u64,
    /// How long it lasted, all turns together.
    pub time_ns: u64,
    /// Devices on which tensors were held, ascending.
    pub devices: Vec<(u8, PhaseUsage)>,
}

#[derive(Debug)]
struct OpenPhase {
    thread: ThreadId,
    phase: usize,
    began_ns: u64,
    /// Bytes of tensors by device when it began.
    held: SeededMap<u8, u64>,
}

/// Follows phases through the events of a run.
#[derive(Debug, Default)]
pub(crate) struct PhaseTracker {
    all: Vec<PhaseRecord>,
    by_name: SeededMap<String, usize>,
    open: Vec<OpenPhase>,
}

impl PhaseTracker {
    /// Takes a begin or an end. `held` are the devices with the bytes that tensors hold there.
    pub(crate) fn event(
        &mut self,
        event: &Event,
        time_ns: u64,
        definitions: &Definitions,
        held: impl Iterator<Item = (u8, u64)>,
    ) {
        if event.kind == EventKind::PHASE_BEGIN {
            let code = definitions.codes.get(&CodeId(event.aux[0] as u32));
            let name = code.map_or_else(String::new, |code| code.name.clone());
            let phase = *self.by_name.entry(name.clone()).or_insert_with(|| {
                self.all.push(PhaseRecord { name, ..PhaseRecord::default() });
                self.all.len() - 1
            });
            let held: SeededMap<u8, u64> = held.collect();
            self.all[phase].turns += 1;
            for (device, bytes) in &held {
                let peak = &mut on(&mut self.all[phase], *device).peak_bytes;
                *peak = (*peak).max(*bytes);
            }
            self.open.push(OpenPhase { thread: thread_of_phase(event), phase, began_ns: time_ns, held });
        } else if let Some(at) = self.open.iter().rposition(|open| open.thread == event.thread) {
            let open = self.open.remove(at);
            self.close(&open, time_ns, held);
        }
    }

    /// Tensors hold this much of a device now.
    #[inline]
    pub(crate) fn held(&mut self, device: u8, bytes: u64) {
        for open in &self.open {
            let peak = &mut on(&mut self.all[open.phase], device).peak_bytes;
            *peak = (*peak).max(bytes);
        }
    }

    /// Only what comes from here on counts: what is open begins now, what has ended never was.
    #[cold]
    pub(crate) fn restart(&mut self, time_ns: u64, held: impl Iterator<Item = (u8, u64)>) {
        let before = std::mem::take(&mut self.all);
        self.by_name.clear();
        let held: SeededMap<u8, u64> = held.collect();
        for open in &mut self.open {
            let name = before[open.phase].name.clone();
            let phase = *self.by_name.entry(name.clone()).or_insert_with(|| {
                self.all.push(PhaseRecord { name, ..PhaseRecord::default() });
                self.all.len() - 1
            });
            self.all[phase].turns += 1;
            for (device, bytes) in &held {
                let peak = &mut on(&mut self.all[phase], *device).peak_bytes;
                *peak = (*peak).max(*bytes);
            }
            (open.phase, open.began_ns, open.held) = (phase, time_ns, held.clone());
        }
    }

    /// The run has ended.
    pub(crate) fn finish(mut self, time_ns: u64, held: &[(u8, u64)]) -> Vec<PhaseRecord> {
        for open in std::mem::take(&mut self.open) {
            self.close(&open, time_ns, held.iter().copied());
        }
        self.all
    }

    fn close(&mut self, open: &OpenPhase, time_ns: u64, held: impl Iterator<Item = (u8, u64)>) {
        let phase = &mut self.all[open.phase];
        phase.time_ns = phase.time_ns.saturating_add(time_ns.saturating_sub(open.began_ns));
        for (device, bytes) in held {
            let before = open.held.get(&device).copied().unwrap_or(0);
            let left = i64::try_from(i128::from(bytes) - i128::from(before)).unwrap_or(i64::MAX);
            let total = &mut on(phase, device).left_bytes;
            *total = total.saturating_add(left);
        }
    }
}

/// Whose end will end it: what began before the recording is told by the thread that started that.
pub(crate) fn thread_of_phase(event: &Event) -> ThreadId {
    if event.aux[1] == 0 { event.thread } else { ThreadId(event.aux[1] as u32) }
}

fn on(phase: &mut PhaseRecord, device: u8) -> &mut PhaseUsage {
    let at = phase.devices.binary_search_by_key(&device, |(device, _)| *device).unwrap_or_else(|at| {
        phase.devices.insert(at, (device, PhaseUsage::default()));
        at
    });
    &mut phase.devices[at].1
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
    fn turns_of_a_name_are_one_phase_and_inner_ones_count_for_themselves() {
        let (definitions, mut phases) = (definitions(), PhaseTracker::default());
        let mut at = |event: Event, time: u64, held: u64| {
            phases.event(&event, time, &definitions, [(0, held)].into_iter());
            phases.held(0, held + 50);
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
    fn a_phase_that_another_thread_tells_of_is_ended_by_its_own() {
        let (definitions, mut phases) = (definitions(), PhaseTracker::default());
        let told = Event { aux: [1, 7], ..begin(1, 1) };
        phases.event(&told, 10, &definitions, [(0, 5)].into_iter());
        phases.event(&end(1), 20, &definitions, [(0, 5)].into_iter());
        phases.event(&end(7), 30, &definitions, [(0, 6)].into_iter());
        assert_eq!(phases.finish(90, &[(0, 9)])[0].time_ns, 20);
    }

    #[test]
    fn a_phase_that_is_never_ended_lasts_to_the_end() {
        let (definitions, mut phases) = (definitions(), PhaseTracker::default());
        phases.event(&begin(1, 9), 10, &definitions, [(3, 100)].into_iter());
        let found = phases.finish(90, &[(3, 40), (4, u64::MAX)]);
        assert_eq!((found[0].name.as_str(), found[0].time_ns), ("", 80));
        assert_eq!(found[0].devices[0], (3, PhaseUsage { peak_bytes: 100, left_bytes: -60 }));
        assert_eq!(found[0].devices[1].1.left_bytes, i64::MAX);
    }
}
