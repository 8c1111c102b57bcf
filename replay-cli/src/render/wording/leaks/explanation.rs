//! What kind of growth a leak is.

use gpumemtrace_replay::report::{GrowsBy, Leak, LeakKind, LeakShape};

use super::name_graph;
use crate::render::wording::Vocabulary;
use crate::render::wording::sites::short_site;
use crate::terminal::format::format_percent;

/// Most other lines at which the cache of pinned memory grew.
const MAX_HOST_CACHE_SITES: usize = 3;

/// What grows, and what happened to the other blocks.
pub(crate) fn explain_leak(leak: &Leak, words: &Vocabulary) -> String {
    let mut sentences = Vec::new();
    match leak.kind {
        LeakKind::Device => sentences.push(words.outside.to_owned()),
        LeakKind::PinnedHost => {
            sentences.push("This is pinned host memory, not memory of the GPU.".to_owned());
        }
        LeakKind::Tensors | LeakKind::Reserved => {}
    }
    sentences.extend(explain_host_cache(leak));
    if let Some(graph) = name_graph(leak) {
        let line = leak.site.line.map_or_else(|| "?".to_owned(), |line| line.to_string());
        sentences.push(format!(
            "{graph}: forward at line {line}, no backward. Its tensors grow in the same steps."
        ));
    }
    sentences.push(describe_fate(leak, words));
    if words.is_metal && leak.kind == LeakKind::Tensors {
        sentences.push(
            "The buffer was created here, but a tensor of another call site may hold it: PyTorch \
             reuses buffers."
                .to_owned(),
        );
    }
    if leak.shape == LeakShape::Accelerating {
        sentences.push("Growth accelerates.".to_owned());
    }
    if !leak.is_regular {
        sentences.push("Growth is irregular: a cache that is still filling looks the same.".to_owned());
    }
    sentences.join(" ")
}

/// Why the line of a leak of PyTorch's pinned memory need not be at fault; `None` for other leaks.
pub(crate) fn explain_host_cache(leak: &Leak) -> Option<String> {
    let others = leak.host_cache_sites.iter().filter(|site| site.id != leak.site.id);
    let others: Vec<String> = others.take(MAX_HOST_CACHE_SITES).map(short_site).collect();
    let also = if others.is_empty() {
        String::new()
    } else {
        format!(" It grew at {}, too.", others.join(" and at "))
    };
    (!leak.host_cache_sites.is_empty()).then(|| {
        format!(
            "PyTorch's cache of pinned memory grew at this line. Which line holds the blocks is unknown: the cache serves all.{also}"
        )
    })
}

/// `99% of GPU 0's growth`; `None` if the share is unknown.
pub(crate) fn describe_share(leak: &Leak) -> Option<String> {
    leak.share_of_growth.map(|share| format!("{} of {}", format_percent(share), name_total(leak)))
}

/// The end of the sentence on a leak's innermost call site.
pub(crate) fn describe_leaf(leak: &Leak) -> &'static str {
    if leak.freed_siblings.share > 0.0 { ", shared with code that frees its blocks." } else { "." }
}

/// What happened to the other blocks of the call site, or how the blocks themselves grow.
fn describe_fate(leak: &Leak, words: &Vocabulary) -> String {
    match (leak.kind, leak.grows_by) {
        (LeakKind::Reserved, _) => {
            let Vocabulary { reserver, segment, .. } = words;
            format!(
                "{reserver} reserves more and more memory that stays unused: freed on a stream or in a \
                 pool that later requests do not use, or in pieces that are too small for them. Most of \
                 the new {segment}s were requested in calls from this line."
            )
        }
        (LeakKind::Tensors, GrowsBy::Size) => {
            "The blocks get larger, not more: a tensor that is extended (torch.cat), or a batch or \
             sequence that gets longer."
                .to_owned()
        }
        (LeakKind::Device | LeakKind::PinnedHost, GrowsBy::Size) => {
            "The blocks get larger, not more: a buffer that is extended.".to_owned()
        }
        (LeakKind::Tensors | LeakKind::Device | LeakKind::PinnedHost, GrowsBy::Blocks) => {
            describe_freed_siblings(leak)
        }
    }
}

fn describe_freed_siblings(leak: &Leak) -> String {
    let freed = leak.freed_siblings.share;
    if freed > 0.0 {
        let site = leak.freed_siblings.site.as_ref();
        let site = site.map(|site| format!(", mostly at {}", short_site(site))).unwrap_or_default();
        let sites = if leak.members.len() > 1 { "these call sites'" } else { "this call site's" };
        return format!("{} of {sites} blocks were freed{site}; these were not.", format_percent(freed));
    }
    "None of this call site's blocks was freed.".to_owned()
}

/// The growth that `share_of_growth` refers to: that of all call sites of the same kind.
fn name_total(leak: &Leak) -> String {
    match leak.kind {
        LeakKind::Device => format!("the growth of driver memory on GPU {}", leak.device),
        LeakKind::PinnedHost => "the growth of pinned host memory".to_owned(),
        LeakKind::Reserved => format!("the growth of unused reserved memory on GPU {}", leak.device),
        LeakKind::Tensors => format!("GPU {}'s growth", leak.device),
    }
}
