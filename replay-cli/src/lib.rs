//! What the command reads beside traces: files of libraries, its own memory of them, and programs that it is to start.
//!
//! Constraint: these files are made by others and may be damaged or hostile, so the fuzzers must reach their readers.
//! Consequence: they are a library; everything else is the command's own (`main.rs`).
#![forbid(unsafe_code)]

pub mod symbolize;

/// How a program is started with the recorder in it; the rest of it is the command's own.
pub mod launch {
    pub mod injectable;
}
