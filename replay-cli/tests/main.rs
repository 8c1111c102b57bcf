//! The tests of the command, in one program: each would link all of it again.

mod cli;
mod compare;
mod export;
mod export_stacks;
mod export_windows;
mod filters;
mod follow;
mod hostile;
mod html;
mod injectable;
mod limits;
mod many_traces;
mod names;
mod outputs;
mod reports;
mod run;
mod schema;
mod shell;
mod source;
mod timeline;
mod whatif;
mod wording;
