//! A restricted unpickler: protocols 2 to 5 without anything that names or calls code.
//!
//! A pickle is a program for a stack machine. This one has numbers, texts, lists, tuples and
//! dictionaries; every other opcode ends the reading with its name. A dictionary is recognized at
//! the opcode that fills it, and then its place on the stack and in the memo has a small number
//! instead. So an event lasts for one opcode, and frames that many events share are read once.

mod bytes;
mod collections;
mod machine;
mod memo;
mod opcode;

use std::io::Read;

use crate::error::SnapshotError;
use crate::values::{SnapshotBuilder, Value};

/// Reads one pickle, which comes after so many others, and returns its value.
pub(crate) fn read_pickle(
    bytes: &mut dyn Read,
    builder: &mut SnapshotBuilder,
    skipped_pickles: u32,
) -> Result<Value, SnapshotError> {
    let mut machine = machine::PickleMachine::new(bytes, builder);
    for _ in 0..skipped_pickles {
        machine.run()?;
        machine.forget();
    }
    machine.run()
}
