//! The leak analysis: single cases, verdicts that must not mislead, and accuracy on generated
//! streams.

mod accuracy;
mod assessment;
mod cases;
mod scoring;
mod streams;
#[path = "../synthetic/mod.rs"]
mod synthetic;
