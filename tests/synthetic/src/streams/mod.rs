//! Generates allocation streams with a known truth, to measure the leak analysis.
//!
//! A seed determines a stream: its class, its parameters ([`plan`]), what the program does
//! ([`healthy`], [`leaks`], [`ambiguous`]), and each event. [`generate`] runs the program and
//! returns the trace and what is true about it. `docs/accuracy.md` describes the
//! parameters.
#![allow(dead_code, unreachable_pub)] // Each user needs some of the functions.

pub mod ambiguous;
pub mod healthy;
pub mod leaks;
pub mod plan;
pub mod program;

use std::cell::RefCell;
use std::rc::Rc;

use crate::dice::Dice;
use plan::{Ending, LeakPlan, LeakTiming, StreamClass, StreamPlan};
use program::Program;

const ROWS_PER_BLOCK: usize = 50_000;

/// A planted leak, and what it did.
#[derive(Clone, Debug)]
pub struct PlantedLeak {
    pub plan: LeakPlan,
    /// Steps in which it allocated.
    pub events: u64,
    pub first_step: u64,
    pub last_step: u64,
    pub bytes: u64,
    /// Bytes of the first and of the last event.
    pub ends_bytes: [u64; 2],
}

impl PlantedLeak {
    /// The mean growth per step, from the first event on.
    pub fn bytes_per_step(&self, steps: u64) -> f64 {
        let steps = match self.plan.timing {
            LeakTiming::Irregular => steps - self.first_step,
            // An event stands for the whole period that it begins.
            _ => self.events * self.plan.period,
        };
        self.bytes as f64 / steps as f64
    }

    /// Least and most of the rates that are true, depending on whether the first and the last event
    /// count. They are equal if all events are equal.
    pub fn rate_range(&self, steps: u64) -> [f64; 2] {
        let span = (self.last_step - self.first_step).max(1) as f64;
        let [first, last] = self.ends_bytes;
        let mean = self.bytes_per_step(steps);
        if self.events < 2 {
            return [mean; 2];
        }
        let rates = [mean, (self.bytes - first) as f64 / span, (self.bytes - last) as f64 / span];
        [rates.iter().copied().fold(f64::MAX, f64::min), rates.iter().copied().fold(0.0, f64::max)]
    }
}

/// The leaks of a running program, shared with the parts that record them.
#[derive(Clone, Default)]
pub struct Truth(Rc<RefCell<Vec<PlantedLeak>>>);

impl Truth {
    fn add(&self, plan: LeakPlan) -> usize {
        let mut leaks = self.0.borrow_mut();
        leaks.push(PlantedLeak {
            plan,
            events: 0,
            first_step: 0,
            last_step: 0,
            bytes: 0,
            ends_bytes: [0; 2],
        });
        leaks.len() - 1
    }

    /// The leaks that have allocated.
    pub fn leaks(&self) -> Vec<PlantedLeak> {
        self.0.borrow().iter().filter(|leak| leak.events > 0).cloned().collect()
    }

    fn record(&self, index: usize, step: u64, bytes: u64) {
        let leak = &mut self.0.borrow_mut()[index];
        if leak.events == 0 {
            leak.first_step = step;
            leak.ends_bytes[0] = bytes;
        }
        leak.ends_bytes[1] = bytes;
        leak.events += 1;
        leak.last_step = step;
        leak.bytes += bytes;
    }
}

/// A trace, and what is true about it.
pub struct Stream {
    pub seed: u64,
    pub plan: StreamPlan,
    pub leaks: Vec<PlantedLeak>,
    /// Names of the healthy and ambiguous parts, the main one first.
    pub parts: Vec<&'static str>,
    pub events: usize,
    pub trace: Vec<u8>,
    /// Of a run that fills its device: the step in which it was full, and traces cut off earlier.
    pub until_full: Option<UntilFull>,
}

/// A run that fills its device.
pub struct UntilFull {
    /// The step in which an allocation failed, counted from 1.
    pub full_at: u64,
    pub cuts: Vec<CutTrace>,
}

/// The beginning of a run.
pub struct CutTrace {
    /// Share of the steps until the device is full.
    pub percent: u64,
    pub steps: u64,
    pub trace: Vec<u8>,
}

/// Shares of a run until the device is full at which the forecast is measured.
pub const CUT_PERCENTS: [u64; 3] = [30, 50, 70];

/// Generates the stream of a seed.
pub fn generate(seed: u64) -> Stream {
    generate_class(StreamClass::of_seed(seed), seed)
}

/// Generates a stream of a class from any seed.
pub fn generate_class(class: StreamClass, seed: u64) -> Stream {
    let (mut program, truth, parts) = draw_program(class, seed);
    if class == StreamClass::UntilFull {
        return run_until_full(seed, program, &truth, parts);
    }
    program.run_to_end(|_| {});
    let trace = encode(&program);
    let leaks = truth.leaks();
    let events = program.run.events.len();
    Stream { seed, plan: program.plan, leaks, parts, events, trace, until_full: None }
}

/// The program of a stream before its first step, the truth that it will record, and the names of
/// its parts.
pub fn draw_program(class: StreamClass, seed: u64) -> (Program, Truth, Vec<&'static str>) {
    let mut dice = Dice::new(seed);
    let (plan, leaks) = StreamPlan::draw(class, &mut dice);
    let mut program = Program::new(plan, seed ^ 0x5eed);
    let truth = Truth::default();
    let mut parts = Vec::new();
    if class == StreamClass::Ambiguous {
        parts.push(ambiguous::add_ambiguous_part(&mut program, &mut dice));
    }
    parts.extend(healthy::add_healthy_parts(&mut program, seed, &mut dice));
    for leak in leaks {
        leaks::add_leak(&mut program, leak, &truth, &mut dice);
    }
    (program, truth, parts)
}

fn encode(program: &Program) -> Vec<u8> {
    match program.plan.ending {
        Ending::Killed => program.run.file_without_end(ROWS_PER_BLOCK),
        Ending::Teardown | Ending::Exit => program.run.file(ROWS_PER_BLOCK),
    }
}

/// Sets the capacity after a tenth of the run, so that the leak fills it near the planned end, and
/// cuts the trace at [`CUT_PERCENTS`] of the steps until then.
fn run_until_full(seed: u64, mut program: Program, truth: &Truth, parts: Vec<&'static str>) -> Stream {
    let planned = program.plan.steps;
    let leak = truth.0.borrow()[0].plan;
    let settled = planned / 6;
    // Blocks that are cached may serve the leak for a while.
    program.plan.steps = planned * 4;
    let mut ends = Vec::new();
    program.run_to_end(|run| {
        ends.push(run.events.len());
        if ends.len() as u64 == settled {
            let events = (planned - settled) / leak.period;
            let bytes = leak.bytes.next_multiple_of(512) * leak.blocks_per_event() * events;
            run.capacity = run.reserved + run.other_driver_bytes + bytes;
        }
    });
    program.run.meta.set_number("device.0.total_bytes", program.run.capacity);
    assert!(program.run.is_full(), "seed {seed}: {leak:?}");
    let full_at = ends.len() as u64;
    let cuts = CUT_PERCENTS.iter().map(|percent| {
        let steps = (full_at * percent / 100).max(1);
        let events = &program.run.events[..ends[steps as usize - 1]];
        CutTrace { percent: *percent, steps, trace: program.run.file_of(events, ROWS_PER_BLOCK) }
    });
    let until_full = UntilFull { full_at, cuts: cuts.collect() };
    let leaks = truth.leaks();
    let trace = program.run.file_without_end(ROWS_PER_BLOCK);
    let plan = StreamPlan { steps: full_at, ..program.plan };
    Stream { seed, plan, leaks, parts, events: program.run.events.len(), trace, until_full: Some(until_full) }
}
