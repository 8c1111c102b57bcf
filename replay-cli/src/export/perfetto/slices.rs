//! Slices with a begin and an end, in tracks in which they nest.

/// A slice, by the index of what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SliceSpan {
    pub(super) begin_ns: i64,
    pub(super) end_ns: i64,
    pub(super) index: usize,
}

/// Begin or end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceEdge {
    /// Index of the slice, and its lane.
    Begin(usize, usize),
    /// Begin and lane of the slice that ends, which is the innermost there.
    End(i64, usize),
}

/// Distributes slices over lanes so that those of a lane nest, and passes their begins and ends.
///
/// Those of a lane ascend in time. Slices that fit into an earlier lane do not get a later one, so
/// slices that all nest are in lane 0.
pub(super) fn for_each_edge(
    mut spans: Vec<SliceSpan>,
    visit: &mut dyn FnMut(i64, SliceEdge) -> std::io::Result<()>,
) -> std::io::Result<()> {
    // Of those that begin together, the longest is outermost.
    spans.sort_unstable_by_key(|span| (span.begin_ns, std::cmp::Reverse(span.end_ns), span.index));
    // Per lane the begins and ends of the open slices, innermost last.
    let mut lanes: Vec<Vec<(i64, i64)>> = Vec::new();
    for span in spans {
        let end_ns = span.end_ns.max(span.begin_ns);
        for (lane, open) in lanes.iter_mut().enumerate() {
            while let Some((begin_ns, end_ns)) = open.pop_if(|(_, end_ns)| *end_ns <= span.begin_ns) {
                visit(end_ns, SliceEdge::End(begin_ns, lane))?;
            }
        }
        let free = lanes.iter().position(|open| open.last().is_none_or(|(_, outer_ns)| *outer_ns >= end_ns));
        let lane = free.unwrap_or(lanes.len());
        if lane == lanes.len() {
            lanes.push(Vec::new());
        }
        lanes[lane].push((span.begin_ns, end_ns));
        visit(span.begin_ns, SliceEdge::Begin(span.index, lane))?;
    }
    for (lane, open) in lanes.iter_mut().enumerate() {
        while let Some((begin_ns, end_ns)) = open.pop() {
            visit(end_ns, SliceEdge::End(begin_ns, lane))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edges(spans: &[(i64, i64)]) -> Vec<(i64, SliceEdge)> {
        let spans = spans.iter().enumerate();
        let spans = spans.map(|(index, &(begin_ns, end_ns))| SliceSpan { begin_ns, end_ns, index });
        let mut edges = Vec::new();
        for_each_edge(spans.collect(), &mut |time_ns, edge| {
            edges.push((time_ns, edge));
            Ok(())
        })
        .unwrap();
        edges
    }

    #[test]
    fn slices_that_follow_each_other_share_a_lane() {
        use SliceEdge::{Begin, End};
        assert_eq!(
            edges(&[(10, 20), (0, 10), (0, 5)]),
            [
                (0, Begin(1, 0)),
                (0, Begin(2, 0)),
                (5, End(0, 0)),
                (10, End(0, 0)),
                (10, Begin(0, 0)),
                (20, End(10, 0))
            ]
        );
    }

    #[test]
    fn overlapping_slices_get_lanes() {
        let all = edges(&[(0, 10), (5, 15), (6, 8)]);
        assert!(all.contains(&(5, SliceEdge::Begin(1, 1))));
        assert!(all.contains(&(6, SliceEdge::Begin(2, 0))));
    }

    proptest! {
        /// A reader that closes the innermost slice finds each slice with its length.
        #[test]
        fn every_slice_is_read_back(spans in prop::collection::vec((-20i64..40, 0i64..40), 0..40)) {
            let spans: Vec<(i64, i64)> = spans.into_iter().map(|(begin, length)| (begin, begin + length)).collect();
            let mut open: Vec<Vec<(usize, i64)>> = Vec::new();
            let mut times: Vec<i64> = Vec::new();
            let mut read = vec![None; spans.len()];
            for (time_ns, edge) in edges(&spans) {
                let (SliceEdge::Begin(_, lane) | SliceEdge::End(_, lane)) = edge;
                open.resize(open.len().max(lane + 1), Vec::new());
                times.resize(times.len().max(lane + 1), i64::MIN);
                prop_assert!(times[lane] <= time_ns, "times of a lane ascend");
                times[lane] = time_ns;
                match edge {
                    SliceEdge::Begin(index, _) => open[lane].push((index, time_ns)),
                    SliceEdge::End(of_ns, _) => {
                        let (index, begin_ns) = open[lane].pop().unwrap();
                        prop_assert_eq!(of_ns, begin_ns);
                        read[index] = Some((begin_ns, time_ns));
                    }
                }
            }
            prop_assert_eq!(read, spans.into_iter().map(Some).collect::<Vec<_>>());
        }
    }
}
