//! The tests of the analyses, in one program: each would link all of them again.

mod apple;
mod budget;
mod compare;
mod damage;
mod driver_memory;
mod exactness;
mod gaps;
mod history;
mod hostile;
mod leaks;
mod naming;
mod oom;
mod parts;
mod peaks;
mod python_lines;
mod running;
mod timeline_bins;
mod verdicts;
