//! Reads snapshots, and files that claim to be snapshots.
//!
//! All tests are one program. Its allocator counts the bytes of each thread on its own.

mod hostile_memory;
mod reader;
