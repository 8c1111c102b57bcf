//! The labels of blocks at the peak, compared with the categories that the rules found.

use schemars::JsonSchema;
use serde::Serialize;

use super::category::Category;
use crate::report::site::Site;

/// Labels that PyTorch or the program gave to the blocks of a peak.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PeakLabels {
    /// Bytes of blocks with a label.
    pub labelled_bytes: u64,
    /// Bytes of blocks for which both the label and the rules name a category.
    pub compared_bytes: u64,
    /// Bytes of `compared_bytes` for which both name the same category.
    pub agreeing_bytes: u64,
    /// The share `agreeing_bytes` of `compared_bytes`; `null` if nothing can be compared.
    pub agreeing_share: Option<f64>,
    /// Memory by label and category, largest first; sums to the peak's `live_bytes`.
    pub pairs: Vec<LabelPair>,
    /// The compared blocks with another category than their label, largest first.
    pub differences: Vec<LabelDifference>,
}

/// The blocks with one label and one category.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LabelPair {
    /// The label as the trace has it; `null` for blocks without one.
    pub label: Option<String>,
    /// The category that the label names; `null` if it names none.
    pub label_category: Option<Category>,
    /// The category that the rules found.
    pub category: Category,
    /// True if both are the same category; `null` if one of them is unknown.
    pub agrees: Option<bool>,
    /// The bytes of these blocks.
    pub bytes: u64,
    /// The number of these blocks.
    pub blocks: u64,
}

/// The blocks of one call site with another category than their label.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LabelDifference {
    /// The call site of the blocks.
    pub site: Site,
    /// The label as the trace has it.
    pub label: String,
    /// The category that the rules found.
    pub category: Category,
    /// The bytes of these blocks.
    pub bytes: u64,
    /// The number of these blocks.
    pub blocks: u64,
}
