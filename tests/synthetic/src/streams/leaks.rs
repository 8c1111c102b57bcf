//! Leaks with a known line, rate and period, and what else allocates there.

use gpumemtrace_format::{EventKind, NodeId};

use super::Truth;
use super::plan::{LeakPlace, LeakPlan, LeakTiming, StepsBy};
use super::program::{Part, Program};
use crate::dice::Dice;

/// File of all lines where a report must place a leak.
pub const LEAK_FILE: &str = "/work/leak.py";

/// File of the function that leaks and healthy callers share.
pub const HELPER_FILE: &str = "/work/helpers.py";

/// The frames of a leak.
struct LeakFrames {
    /// Where its blocks are allocated; several lines for a graph.
    leak: Vec<NodeId>,
    /// Where healthy blocks are allocated, at the same line or below the same helper.
    healthy: Vec<NodeId>,
}

fn frames(program: &mut Program, leak: &LeakPlan, dice: &mut Dice) -> LeakFrames {
    let under = program.frames.train;
    let run = &mut program.run;
    let caller = run.frame(under, LEAK_FILE, "collect", leak.line);
    let other = run.frame(under, "/work/train.py", "use", 50);
    // Each leak has a helper or a model of its own.
    let (helper_line, first_layer) = (leak.line - 20, 20 + 40 * (leak.line - 30));
    match leak.place {
        LeakPlace::RetainedGraph => {
            let graph = |run: &mut crate::Synthetic, under| {
                (0..leak.lines as i32)
                    .map(|at| run.frame(under, "/work/model.py", "Net.forward", first_layer + at))
                    .collect()
            };
            LeakFrames { leak: graph(run, caller), healthy: graph(run, other) }
        }
        LeakPlace::SharedHelper => LeakFrames {
            leak: vec![run.frame(caller, HELPER_FILE, "keep", helper_line)],
            healthy: vec![run.frame(other, HELPER_FILE, "keep", helper_line)],
        },
        LeakPlace::OwnStack => LeakFrames {
            leak: vec![program.library_frame(caller, 100)],
            healthy: vec![program.library_frame(caller, 200)],
        },
        LeakPlace::DriverMemory | LeakPlace::PinnedHost => {
            LeakFrames { leak: vec![caller], healthy: Vec::new() }
        }
        LeakPlace::OwnLine | LeakPlace::BesideTemporaries | LeakPlace::BesideReplaced => {
            let leaf = if dice.one_in(2) { program.library_frame(caller, 100) } else { caller };
            LeakFrames { leak: vec![leaf], healthy: vec![leaf] }
        }
    }
}

/// Adds a leak to the program: its healthy neighbours first, then the leak itself, so that the
/// blocks of both alternate.
pub fn add_leak(program: &mut Program, leak: LeakPlan, truth: &Truth, dice: &mut Dice) {
    let frames = frames(program, &leak, dice);
    let varies = program.plan.steps_by != StepsBy::Period;
    if let Some(part) = neighbour(&leak, frames.healthy.clone(), varies, dice) {
        program.add_main_part(part);
    }
    let index = truth.add(leak);
    let truth = truth.clone();
    let mut events = 0;
    program.add_main_part(Box::new(move |program| {
        let step = program.step;
        if step < leak.start {
            return;
        }
        let is_due = match leak.timing {
            LeakTiming::Irregular => program.dice.one_in(leak.period),
            _ => (step - leak.start).is_multiple_of(leak.period),
        };
        if !is_due {
            return;
        }
        events += 1;
        let blocks = match leak.timing {
            LeakTiming::Accelerating => leak.blocks + leak.blocks * 8 * events / leak.planned_events,
            _ => leak.blocks,
        };
        let mut bytes = 0;
        for _ in 0..leak.rounds {
            for _ in 0..blocks {
                for (line, at) in frames.leak.iter().zip(1..) {
                    bytes += leak_block(program, &leak, *line, at);
                }
            }
        }
        truth.record(index, step, bytes);
    }));
}

/// Allocates a block that is never freed. Returns its size.
fn leak_block(program: &mut Program, leak: &LeakPlan, line: NodeId, at: u64) -> u64 {
    let varied = match leak.place {
        // The layers of a model differ.
        LeakPlace::RetainedGraph => leak.bytes * (at % 3 + 1) / 2,
        _ => leak.bytes,
    };
    let bytes = if leak.has_varying_sizes { varied * program.dice.within(4, 12) / 8 } else { varied };
    match leak.place {
        LeakPlace::DriverMemory => {
            program.call_driver(EventKind::DEVICE_ALLOC, bytes, line);
            bytes
        }
        LeakPlace::PinnedHost => {
            program.call_driver(EventKind::HOST_ALLOC, bytes, line);
            bytes
        }
        _ => {
            let block = program.run.alloc(line, bytes);
            program.run.size_of(block)
        }
    }
}

/// What else allocates at the leak's line.
fn neighbour(leak: &LeakPlan, lines: Vec<NodeId>, varies: bool, dice: &mut Dice) -> Option<Part> {
    let line = *lines.first()?;
    let most = if varies { 4 } else { 1 };
    // A helper may churn much more than the leak keeps.
    let unit = (leak.bytes * dice.log(1, 300) / 16).clamp(512, 32 << 20);
    match leak.place {
        LeakPlace::BesideTemporaries => Some(temporaries(line, unit, most)),
        LeakPlace::BesideReplaced => Some(replaced(line, unit, most)),
        LeakPlace::SharedHelper | LeakPlace::OwnStack => Some(match dice.below(3) {
            0 => temporaries(line, unit, most),
            1 => replaced(line, unit, most),
            _ => random_pool(line, unit, most),
        }),
        LeakPlace::RetainedGraph => Some(Box::new(move |program| {
            let blocks: Vec<u64> = lines.iter().map(|line| program.run.alloc(*line, unit)).collect();
            blocks.into_iter().rev().for_each(|block| program.run.release(block, line));
        })),
        LeakPlace::OwnLine | LeakPlace::DriverMemory | LeakPlace::PinnedHost => None,
    }
}

fn temporaries(line: NodeId, unit: u64, most: u64) -> Part {
    Box::new(move |program| {
        for _ in 0..program.dice.within(1, most) {
            let bytes = unit * program.dice.within(1, most);
            let block = program.run.alloc(line, bytes);
            program.run.release(block, line);
        }
    })
}

fn replaced(line: NodeId, unit: u64, most: u64) -> Part {
    let mut held: Option<u64> = None;
    Box::new(move |program| {
        let bytes = unit * program.dice.within(1, most);
        let new = program.run.alloc(line, bytes);
        if let Some(old) = held.replace(new) {
            program.run.release(old, line);
        }
    })
}

/// A pool that is filled at first, and replaces random blocks.
fn random_pool(line: NodeId, unit: u64, most: u64) -> Part {
    let mut held: Vec<u64> = Vec::new();
    Box::new(move |program| {
        if held.is_empty() {
            held = (0..6).map(|_| program.run.alloc(line, unit)).collect();
        }
        for _ in 0..program.dice.within(1, most) {
            let at = program.dice.below(held.len() as u64) as usize;
            let bytes = unit * program.dice.within(1, most);
            let new = program.run.alloc(line, bytes);
            program.run.release(std::mem::replace(&mut held[at], new), line);
        }
    })
}
