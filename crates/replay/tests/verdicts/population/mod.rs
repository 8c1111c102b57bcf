//! Generates random training runs without a leak.
//!
//! Each run draws its parts ([`parts`]), their sizes and its length from a seed, so that verdicts
//! are tested on cases that their rules were not written for. The streams of
//! `tests/synthetic/src/streams/` are larger and measure the leak analysis.
#![allow(dead_code, unreachable_pub)] // Each test uses some of the functions.

pub mod parts;

use gpumemtrace_format::event::MARK_STEP;
use gpumemtrace_format::{EventKind, NodeId};

use gpumemtrace_synthetic::dice::Dice;
use gpumemtrace_synthetic::{Packed, Synthetic, TORCH};
use parts::PopulationPart;

/// The signs by which the analysis can detect steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepsBy {
    Marks,
    Optimizer,
    /// Nothing but the periodicity of allocations.
    Nothing,
}

/// The training loop of a generated program.
pub struct World {
    pub run: Synthetic,
    pub dice: Dice,
    pub step: u64,
    pub steps: u64,
    /// Frame of `train()`, which the loop calls.
    pub train: NodeId,
    /// Frame of `evaluate()`, which the loop calls.
    pub evaluate: NodeId,
    /// Frame of PyTorch's optimizer, which the loop calls.
    pub adam: NodeId,
    steps_by: StepsBy,
    /// Number of lines that [`World::line`] created.
    lines: i32,
}

impl World {
    pub fn new(seed: u64, steps: u64, steps_by: StepsBy) -> Self {
        let mut run = Synthetic::new();
        run.packed = Some(Packed::default());
        let at = run.frame(NodeId::NONE, "/work/train.py", "<module>", 95);
        let train = run.frame(at, "/work/train.py", "train", 40);
        let evaluate = run.frame(at, "/work/train.py", "evaluate", 60);
        let wrapper = "Optimizer.profile_hook_step.<locals>.wrapper";
        let wrapper = run.frame(at, &format!("{TORCH}optim/optimizer.py"), wrapper, 50);
        let adam = run.frame(wrapper, &format!("{TORCH}optim/adam.py"), "Adam.step", 60);
        Self { run, dice: Dice::new(seed), step: 0, steps, train, evaluate, adam, steps_by, lines: 0 }
    }

    /// Adds a new line of user code.
    pub fn line(&mut self, under: NodeId) -> NodeId {
        self.lines += 1;
        self.run.frame(under, "/work/parts.py", "part", 100 + self.lines)
    }

    /// Runs all parts for all steps, then frees everything.
    pub fn run_parts(&mut self, parts: &mut [Box<dyn PopulationPart>]) {
        let temporary = self.line(self.train);
        for step in 0..self.steps {
            self.step = step;
            if self.steps_by == StepsBy::Marks {
                let train = self.train;
                self.run.event(EventKind::MARK, 0, 0, [MARK_STEP, 0], train);
            }
            let input = self.run.alloc(temporary, 1 << 16);
            for part in parts.iter_mut() {
                part.step(self);
            }
            self.run.release(input, temporary);
            if self.steps_by == StepsBy::Optimizer {
                let adam = self.adam;
                let temporary = self.run.alloc(adam, 8192);
                self.run.release(temporary, adam);
            }
        }
        self.run.release_all();
    }
}

/// Generates a run of 5 to 150 steps without a leak.
pub fn healthy_run(seed: u64) -> World {
    let mut dice = Dice::new(!seed);
    let steps = dice.log(5, 150);
    let steps_by = match dice.below(8) {
        0..4 => StepsBy::Marks,
        4..7 => StepsBy::Optimizer,
        _ => StepsBy::Nothing,
    };
    let mut world = World::new(seed, steps, steps_by);
    let mut chosen: Vec<Box<dyn PopulationPart>> = Vec::new();
    for _ in 0..dice.within(2, 6) {
        chosen.push(parts::healthy_part(&mut world, &mut dice));
    }
    world.run_parts(&mut chosen);
    world
}
