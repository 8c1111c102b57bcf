//! Call sites: the line, function and stack of an event, and names for them.

pub(crate) mod autograd;
pub(crate) mod backward_stacks;
pub(crate) mod call_context;
pub(crate) mod call_paths;
pub(crate) mod code_origin;
pub(crate) mod frame_budget;
pub(crate) mod frames;
pub(crate) mod mixed_stack;
pub(crate) mod module_calls;
pub(crate) mod module_owner;
pub(crate) mod py_linetable;
pub(crate) mod site_key;
pub(crate) mod stack_root;
pub(crate) mod symbolizer;
pub(crate) mod symbols;

pub use self::{
    code_origin::UserCodePaths,
    py_linetable::line_at,
    site_key::stable_id,
    symbolizer::{NameScope, Symbolizer, symbolize_address},
};
