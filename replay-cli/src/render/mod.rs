//! What reports look like: a file or a folder for each output.

pub(crate) mod junit;
pub(crate) mod markdown;
pub(crate) mod text;
