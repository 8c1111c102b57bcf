//! Call sites: which line, function and stack an event came from.

pub mod autograd;
pub mod code_origin;
pub mod frames;
pub mod mixed_stack;
pub mod module_owner;
pub mod py_linetable;
pub mod symbolizer;
pub mod symbols;
