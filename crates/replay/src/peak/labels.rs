//! Compares the categories of the peak with the labels that the trace has for its blocks.
//!
//! PyTorch snapshots have such labels: `user_metadata` is a text of the program, and `category` is
//! what PyTorch's memory profiler found. A label is compared only if its text is the name of a
//! category and the rules found one, so unknown blocks count neither for nor against agreement.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpumemtrace_format::CodeId;

use crate::pass::Analysis;
use crate::peak::category::CategorizedBlock;
use crate::report::{Category, LabelDifference, LabelPair, PeakLabels};
use crate::state::live_set::LiveSet;
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::ids::SiteId;
use crate::util::seeded_map::SeededMap;

/// Compares labels and categories of blocks. `labels` has the label of a block by the number of
/// the event that allocated it. `None` if no block has one.
pub(super) fn compare_labels(
    analysis: &Analysis,
    live_set: &LiveSet,
    labels: &SeededMap<u64, CodeId>,
    categorized: &[CategorizedBlock<'_>],
) -> Option<PeakLabels> {
    type Sums<Key> = BTreeMap<Key, BlockTotals>;
    let (mut pairs, mut differing): (Sums<_>, Sums<_>) = (BTreeMap::new(), BTreeMap::new());
    let codes = &analysis.symbols.definitions().codes;
    let label_of = |one: &CategorizedBlock<'_>| {
        let code = codes.get(labels.get(&one.block.block.serial)?)?;
        Some(code.name.as_str())
    };
    for one in categorized {
        let (label, category) = (label_of(one), one.verdict.category);
        pairs.entry((label, category)).or_default().add(one.block.block.bytes);
        if let Some(label) = label.filter(|label| agreement(label, category) == Some(false)) {
            differing.entry((label, category, one.site)).or_default().add(one.block.block.bytes);
        }
    }
    if pairs.keys().all(|(label, _)| label.is_none()) {
        return None;
    }
    let mut pairs: Vec<LabelPair> = pairs
        .into_iter()
        .map(|((label, category), BlockTotals { bytes, blocks })| LabelPair {
            label: label.map(str::to_owned),
            label_category: label.and_then(category_of_label),
            category,
            agrees: label.and_then(|label| agreement(label, category)),
            bytes,
            blocks,
        })
        .collect();
    pairs.sort_by_key(|pair| Reverse(pair.bytes));
    let difference = |((label, category, site), held): ((&str, Category, SiteId), BlockTotals)| {
        let site = analysis.symbols.site(site, live_set.main_stack_at_peak(site));
        LabelDifference { site, label: label.to_owned(), category, bytes: held.bytes, blocks: held.blocks }
    };
    let mut differences: Vec<LabelDifference> = differing.into_iter().map(difference).collect();
    differences.sort_by_key(|difference| Reverse(difference.bytes));
    let bytes_of = |is_counted: &dyn Fn(&LabelPair) -> bool| {
        saturating_sum(pairs.iter().filter(|pair| is_counted(pair)).map(|pair| pair.bytes))
    };
    let labelled_bytes = bytes_of(&|pair| pair.label.is_some());
    let compared_bytes = bytes_of(&|pair| pair.agrees.is_some());
    let agreeing_bytes = bytes_of(&|pair| pair.agrees == Some(true));
    let agreeing_share = (compared_bytes > 0).then(|| agreeing_bytes as f64 / compared_bytes as f64);
    Some(PeakLabels { labelled_bytes, compared_bytes, agreeing_bytes, agreeing_share, pairs, differences })
}

/// Whether a label names this category; `None` if the category is unknown or the label names none.
fn agreement(label: &str, category: Category) -> Option<bool> {
    let named = category_of_label(label)?;
    (category != Category::Unknown).then_some(named == category)
}

/// The category that a label names, in the words of PyTorch's memory profiler and in ours.
fn category_of_label(label: &str) -> Option<Category> {
    let word: String = label.trim().to_lowercase().replace(['-', ' '], "_");
    // `autograd_detail` of PyTorch's profiler has no counterpart: it may be kept or temporary.
    match word.strip_suffix('s').unwrap_or(&word) {
        "parameter" | "param" | "weight" | "buffer" => Some(Category::Parameters),
        "gradient" | "grad" => Some(Category::Gradients),
        "optimizer" | "optimizer_state" => Some(Category::OptimizerState),
        "activation" => Some(Category::Activations),
        "temporary" | "temporarie" => Some(Category::Temporaries),
        "workspace" => Some(Category::Workspaces),
        "input" | "batch" => Some(Category::Inputs),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_name_categories_in_words_of_the_profiler_and_in_ours() {
        use Category::{Activations, Gradients, Inputs, OptimizerState, Parameters, Temporaries, Workspaces};
        let ours = [Parameters, Gradients, OptimizerState, Activations, Temporaries, Workspaces, Inputs];
        for category in ours {
            assert_eq!(category_of_label(category.name()), Some(category));
        }
        let theirs =
            ["PARAMETER", "gradient", "optimizer-state", "Activation", "temporary", "workspace", " input "];
        assert_eq!(theirs.map(category_of_label), ours.map(Some));
        for label in ["unknown", "autograd_detail", "", "s", "parameters of layer 3", "{\"step\":1}"] {
            assert_eq!(category_of_label(label), None, "{label}");
        }
    }

    #[test]
    fn unknown_is_neither_agreement_nor_difference() {
        assert_eq!(agreement("gradient", Category::Gradients), Some(true));
        assert_eq!(agreement("gradient", Category::Activations), Some(false));
        assert_eq!(agreement("gradient", Category::Unknown), None);
        assert_eq!(agreement("unknown", Category::Unknown), None);
    }
}
