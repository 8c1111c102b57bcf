//! Searches for what just fits: the smallest card, the largest value of an argument.

mod card;
mod largest_value;

pub use card::CardSearch;
pub use largest_value::{
    LARGEST_SCHEMA, LARGEST_VERSION, LargestAnswer, LargestOfSetting, LargestSearch, ValueRun,
};
