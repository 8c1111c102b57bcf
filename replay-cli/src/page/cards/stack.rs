//! A call stack as a list, innermost frame first, own code marked.

use gpumemtrace_replay::report::{FrameKind, Site};

use super::element::{Element, element};
use super::link_button;
use crate::render::wording::sites::format_frame;
use crate::terminal::format::format_count;

/// The stack of a site. Native frames of a stack with Python frames are hidden behind a button.
pub(super) fn stack_list(title: &str, site: &Site) -> Option<Element> {
    let has_python = site.stack.iter().any(|frame| frame.kind == FrameKind::Python);
    let mut hidden = 0;
    let mut list = element("ol").class("stack");
    for frame in &site.stack {
        let mut item = element("li");
        if frame.is_own {
            item = item.class("own").add(element("span").class("visually-hidden").add("own code: "));
        }
        if has_python && frame.kind == FrameKind::Native {
            hidden += 1;
            item = item.with("hidden", "");
        }
        list = list.add(item.add(format_frame(frame)));
    }
    let count = format_count(site.stack.len() as u64, "frame");
    let show = format!("Show {}", format_count(hidden, "native frame"));
    let button = (hidden > 0).then(|| link_button(&show).with("reveal", "li"));
    let stack = element("details").add(element("summary").add(format!("{title}: {count}")));
    (!site.stack.is_empty()).then(|| stack.add(list).add(button))
}
