//! What other settings of PyTorch's allocator would have reserved on a GPU.

use gpumemtrace_replay::report::SettingEffects;

use super::element::{Color, Element, Node, element};
use super::fragmentation::{percent, share};
use super::{CardTrace, nodes, paragraph};
use crate::render::wording::Vocabulary;
use crate::render::wording::fragmentation::{describe_setting_effects, name_setting};
use crate::terminal::units::format_bytes;

/// Whether another setting would have reserved less, and a curve for each one tried. Empty if none
/// was.
pub(super) fn cards(trace: &CardTrace<'_>, device: u32) -> Vec<Node> {
    let words = Vocabulary::of_trace(&trace.report.traces[trace.trace]);
    let all = trace.report.setting_effects.iter().flatten();
    let of_device = all.filter(|one| (one.trace, one.device) == (trace.trace, device));
    let parts = of_device.flat_map(|effects| {
        let summary = paragraph(describe_setting_effects(effects, &words));
        let curves = setting_curves(effects);
        let caption = curves.is_some().then(|| {
            paragraph("Reserved memory over the run with each setting, as predicted, and its peak:")
                .class("muted")
        });
        [Some(summary), caption, curves].into_iter().flatten()
    });
    nodes(parts.collect::<Vec<Element>>())
}

/// The reserved memory with each setting over time; the highest peak has the full height.
fn setting_curves(effects: &SettingEffects) -> Option<Element> {
    let recorded = effects.recorded_peak_bytes;
    let most = effects.settings.iter().map(|effect| effect.peak_reserved_bytes).fold(recorded, u64::max);
    let tried = effects
        .settings
        .iter()
        .map(|effect| (name_setting(&effect.setting), effect.peak_reserved_bytes, &effect.reserved_curve));
    let rows = [("recorded", recorded, &effects.recorded_curve)].into_iter().chain(tried);
    let rows = rows.map(|(name, bytes, curve)| {
        let heights = curve.peak_bytes.iter().map(|bytes| share(*bytes, most));
        let area = element("span").colored(Color::Theme("muted")).shaped(heights);
        let head = element("div")
            .class("waterfall-head")
            .add(element("span").class("waterfall-name").add(name))
            .add(element("span").class("number").add(format_bytes(bytes)))
            .add(element("span").class("number muted").add(percent(bytes, recorded)))
            .add(element("span").class("track tall").with("aria-hidden", "true").add(area));
        element("li").add(head)
    });
    let rows: Vec<Element> = rows.collect();
    (rows.len() > 1).then(|| element("ol").class("waterfall-rows").add(rows))
}
