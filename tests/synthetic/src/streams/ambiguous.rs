//! Memory of which the events do not say whether it is a leak.

use gpumemtrace_format::NodeId;

use super::plan::StreamPlan;
use super::program::{Part, Program};
use crate::dice::Dice;

/// File of the lines of ambiguous parts.
pub const AMBIGUOUS_FILE: &str = "/work/ambiguous.py";

type MakePart = fn(StreamPlan, (NodeId, u64), &mut Dice) -> Part;

const PARTS: &[(&str, MakePart)] = &[
    ("filling_cache", filling_cache),
    ("filling_queue", filling_queue),
    ("cat_tensor", cat_tensor),
    ("single_round", single_round),
    ("filling_late", filling_late),
];

/// Adds one of the ambiguous parts. Returns its name.
pub fn add_ambiguous_part(program: &mut Program, dice: &mut Dice) -> &'static str {
    let (name, make) = dice.pick(PARTS);
    let line = program.run.frame(program.frames.train, AMBIGUOUS_FILE, name, 20);
    let unit = dice.log(1, 1 << 11) * 512;
    let part = make(program.plan, (line, unit), dice);
    program.add_main_part(part);
    name
}

/// A cache of random keys, of which the run sees only some.
fn filling_cache(plan: StreamPlan, (line, unit): (NodeId, u64), dice: &mut Dice) -> Part {
    let keys = plan.steps * dice.within(1, 4);
    let mut known = std::collections::HashSet::new();
    Box::new(move |program| {
        let key = program.dice.below(keys);
        if known.insert(key) {
            program.run.alloc(line, unit);
        }
    })
}

/// A queue or replay buffer that would be full after the end.
fn filling_queue(_: StreamPlan, (line, unit): (NodeId, u64), dice: &mut Dice) -> Part {
    let every = dice.within(1, 3);
    Box::new(move |program| {
        if program.step.is_multiple_of(every) {
            program.run.alloc(line, unit);
        }
    })
}

/// One tensor to which each step appends (`torch.cat`).
fn cat_tensor(_: StreamPlan, (line, unit): (NodeId, u64), _: &mut Dice) -> Part {
    let mut held: Option<u64> = None;
    Box::new(move |program| {
        let bytes = (unit * (program.step + 1)).min(2 << 30);
        let longer = program.run.alloc(line, bytes);
        if let Some(old) = held.replace(longer) {
            program.run.release(old, line);
        }
    })
}

/// One validation round near the end whose results are still held.
fn single_round(plan: StreamPlan, (line, unit): (NodeId, u64), dice: &mut Dice) -> Part {
    let at = plan.steps - 1 - dice.below((plan.steps / 4).max(1));
    let iterations = dice.log(4, 200);
    Box::new(move |program| {
        if program.step == at {
            for _ in 0..iterations {
                let temporary = program.run.alloc(line, 4 * unit);
                program.run.alloc(line, unit);
                program.run.release(temporary, line);
            }
        }
    })
}

/// A bounded queue that is full at 80 to 99% of the run.
fn filling_late(plan: StreamPlan, (line, unit): (NodeId, u64), dice: &mut Dice) -> Part {
    let depth = (plan.steps * dice.within(80, 99) / 100) as usize;
    let mut held = std::collections::VecDeque::new();
    Box::new(move |program| {
        held.push_back(program.run.alloc(line, unit));
        if held.len() > depth {
            program.run.release(held.pop_front().unwrap(), line);
        }
    })
}
