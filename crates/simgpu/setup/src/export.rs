//! What one library exports, and the template code behind each name.

/// One exported symbol of a library.
#[derive(Debug)]
pub(crate) struct Export {
    /// Name in the library.
    pub(crate) name: String,
    /// The code behind it.
    pub(crate) target: Target,
    /// Version node, if the wheel requires one.
    pub(crate) version: Option<String>,
}

/// Code in the template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// An exported symbol of the template.
    Symbol(String),
    /// A stub, by its index in the row of stubs.
    Stub(usize),
}
