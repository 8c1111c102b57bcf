//! The leak analysis: single cases, verdicts that must not mislead, and accuracy on generated
//! streams.

mod accuracy;
mod assessment;
mod cases;
mod doubts;
