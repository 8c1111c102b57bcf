//! Sizes and names as text.

pub mod units;
pub mod vocabulary;
