//! Typical uses of memory without a leak. Each allocates at lines of a file of its own, named like
//! the part, so that a false alarm names its cause.
//!
//! All memory with a bound has reached it at [`StreamPlan::fill_by`]: what is still filling at the
//! end of a run cannot be told from a leak.

mod bounded;
mod growing;
mod lasting;
mod transient;

use gpumemtrace_format::NodeId;

use super::plan::{StepsBy, StreamClass, StreamPlan};
use super::program::{Part, Program};
use crate::dice::Dice;

/// What a part of a program is made of.
pub struct PartFrame {
    pub name: &'static str,
    /// A line of its own.
    pub line: NodeId,
    /// Size of its blocks in bytes.
    pub unit: u64,
    pub plan: StreamPlan,
    /// True if sizes and numbers vary from step to step.
    pub is_varying: bool,
}

impl PartFrame {
    /// The most steps of something that must happen several times in a run.
    pub fn steps_over(&self, times: u64) -> u64 {
        (self.plan.steps / times).max(1)
    }
}

/// Where a part may be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// In all classes of streams, with all signs of steps.
    Any,
    /// Not where allocations must recur after a constant number of others.
    Varying,
    /// Neither there, nor in a server, which has no optimizer.
    Training,
    /// Neither there, nor in a run whose memory must be stationary after its first tenth.
    Changing,
}

type MakePart = fn(&mut Program, &PartFrame, &mut Dice) -> Part;

/// Each part: name, where it may be used, constructor.
const PARTS: &[(&str, Use, MakePart)] = &[
    ("activations", Use::Any, transient::activations),
    ("double_buffer", Use::Any, transient::double_buffer),
    ("held_over", Use::Any, transient::held_over),
    ("accumulation", Use::Any, transient::accumulation),
    ("evaluation", Use::Varying, transient::evaluation),
    ("noise", Use::Varying, transient::noise),
    ("prefetch", Use::Varying, transient::prefetch),
    ("fifo_queue", Use::Any, bounded::fifo_queue),
    ("lru_cache", Use::Varying, bounded::lru_cache),
    ("known_keys", Use::Varying, bounded::known_keys),
    ("random_pool", Use::Varying, bounded::random_pool),
    ("pool_of_rate", Use::Varying, bounded::pool_of_rate),
    ("bounded_walk", Use::Varying, bounded::bounded_walk),
    ("sawtooth", Use::Any, bounded::sawtooth),
    ("random_sawtooth", Use::Varying, bounded::random_sawtooth),
    ("checkpoints", Use::Changing, bounded::checkpoints),
    ("pinned_pool", Use::Varying, bounded::pinned_pool),
    ("optimizer_state", Use::Training, lasting::optimizer_state),
    ("warm_up", Use::Varying, lasting::warm_up),
    ("rare_copies", Use::Changing, lasting::rare_copies),
    ("workspaces", Use::Varying, lasting::workspaces),
    ("recompiles", Use::Varying, lasting::recompiles),
    ("collective_buffers", Use::Varying, lasting::collective_buffers),
    ("ratchet", Use::Changing, growing::ratchet),
    ("longer_episodes", Use::Changing, growing::longer_episodes),
    ("accumulation_ramp", Use::Changing, growing::accumulation_ramp),
    ("unfreezing", Use::Changing, growing::unfreezing),
    ("curriculum", Use::Changing, growing::curriculum),
    ("longer_sequences", Use::Changing, growing::longer_sequences),
    ("phases", Use::Changing, growing::phases),
];

/// Names of all parts.
pub fn part_names() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|(name, ..)| *name)
}

/// Adds parameters and typical parts. The first part of a healthy stream follows from its seed, so
/// that all occur equally often.
pub fn add_healthy_parts(program: &mut Program, seed: u64, dice: &mut Dice) -> Vec<&'static str> {
    add_parameters(program, dice);
    let plan = program.plan;
    let usable: Vec<_> = PARTS
        .iter()
        .filter(|(_, of, _)| match plan.class {
            StreamClass::UntilFull => *of != Use::Changing,
            _ => match plan.steps_by {
                StepsBy::Period => *of == Use::Any,
                StepsBy::Requests => *of != Use::Training,
                StepsBy::Marks | StepsBy::Optimizer => true,
            },
        })
        .collect();
    // Long runs have fewer parts, which bounds the events of a stream.
    let most = if plan.steps > 1000 { 2 } else { 5 };
    let count = match plan.class {
        StreamClass::Healthy => dice.within(1, most),
        _ => dice.within(0, most.min(3)),
    };
    let mut names = Vec::new();
    for at in 0..count {
        let is_main = at == 0 && plan.class == StreamClass::Healthy;
        let chosen = if is_main { seed / 20 * 9 + seed % 20 } else { dice.below(usable.len() as u64) };
        let (name, _, make) = usable[chosen as usize % usable.len()];
        add_part(program, (*name, *make), dice);
        names.push(*name);
    }
    names
}

fn add_part(program: &mut Program, (name, make): (&'static str, MakePart), dice: &mut Dice) {
    let plan = program.plan;
    let under = if dice.one_in(4) { program.frames.evaluate } else { program.frames.train };
    let line = program.line(under, name);
    let most = if plan.class == StreamClass::UntilFull { 1 << 9 } else { 1 << 13 };
    let unit = dice.log(1, most) * 512;
    let is_varying = plan.steps_by != StepsBy::Period;
    let frame = PartFrame { name, line, unit, plan, is_varying };
    let part = make(program, &frame, dice);
    program.add_part(part, dice);
}

fn add_parameters(program: &mut Program, dice: &mut Dice) {
    let main = program.frames.main;
    let line = program.line(main, "model_init");
    let (count, unit) = (dice.log(4, 200), dice.log(1, 1 << 12) * 512);
    for at in 0..count {
        program.run.alloc(line, unit * (at % 5 + 1));
    }
}
