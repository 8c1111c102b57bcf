//! Measures the leak analysis on generated allocation streams (`scripts/accuracy/run`,
//! `docs/accuracy.md`).
//!
//! usage: leak_accuracy [--streams N] [--first SEED] [--threads N] [--list-failures]
//!        leak_accuracy --seed N [--dump FILE.trace]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use gpumemtrace_synthetic::scoring::counts::Counts;
use gpumemtrace_synthetic::scoring::{StreamScore, failures, goals::goals, tables};
use gpumemtrace_synthetic::streams;

const USAGE: &str = "usage: leak_accuracy [--streams N] [--first SEED] [--threads N] [--list-failures]\n\
                     \x20      leak_accuracy --seed N [--dump FILE.trace]";

struct Options {
    streams: u64,
    first: u64,
    threads: usize,
    lists_failures: bool,
    seed: Option<u64>,
    dump: Option<String>,
}

fn parse_options() -> Option<Options> {
    let mut options = Options {
        streams: 10_000,
        first: 0,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        lists_failures: false,
        seed: None,
        dump: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        match name.as_str() {
            "--list-failures" => options.lists_failures = true,
            "--streams" => options.streams = arguments.next()?.parse().ok()?,
            "--first" => options.first = arguments.next()?.parse().ok()?,
            "--threads" => options.threads = arguments.next()?.parse().ok()?,
            "--seed" => options.seed = Some(arguments.next()?.parse().ok()?),
            "--dump" => options.dump = Some(arguments.next()?),
            _ => return None,
        }
    }
    Some(options)
}

/// Scores of all streams in the order of their seeds.
fn score_all(options: &Options) -> Vec<StreamScore> {
    let next = AtomicU64::new(options.first);
    let end = options.first + options.streams;
    let scores = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let score = StreamScore::of_stream(&streams::generate(seed));
                    scores.lock().expect("no panic holds it").push(score);
                }
            });
        }
    });
    let mut scores = scores.into_inner().expect("no panic held it");
    scores.sort_by_key(|score| score.seed);
    scores
}

fn show_seed(seed: u64, dump: Option<&str>) -> std::io::Result<()> {
    let stream = streams::generate(seed);
    if let Some(path) = dump {
        std::fs::write(path, &stream.trace)?;
        for cut in stream.until_full.iter().flat_map(|until_full| &until_full.cuts) {
            std::fs::write(format!("{path}.{}", cut.percent), &cut.trace)?;
        }
    }
    let score = StreamScore::of_stream(&stream);
    println!("{}", failures::describe(&score));
    Ok(())
}

fn main() -> ExitCode {
    let Some(options) = parse_options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if let Some(seed) = options.seed {
        return match show_seed(seed, options.dump.as_deref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("leak_accuracy: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let scores = score_all(&options);
    let mut counts = Counts::default();
    for score in &scores {
        counts.add(score);
        if options.lists_failures && !failures::reasons(score).is_empty() {
            println!("{}", failures::describe(score));
        }
    }
    if !options.lists_failures {
        print!("{}", tables::markdown(&counts));
    }
    eprintln!("leak_accuracy: {} streams, {} events", scores.len(), tables::number(counts.events));
    ExitCode::from(u8::from(goals(&counts).iter().any(|goal| !goal.is_met_within(0.0))))
}
