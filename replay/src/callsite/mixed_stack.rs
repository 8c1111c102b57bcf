//! Python and native frames of one thread, in the order in which they called each other.
//!
//! Constraint: the two stacks are walked apart, and nothing in the one points into the other. Consequence: what is known of
//! CPython is used. Python frames are run by its evaluation loop, so each native frame of that loop (`_PyEval_EvalFrameDefault`)
//! is where Python frames belong: those from one that was entered from C (which the trace tells, [`FrameLink::C`]) inwards up to the
//! next such. There are as many loops as such frames; where fewer or more are found (the interpreter has no symbols, a stack was
//! cut), what lies innermost is in its place, and the order of the rest is called approximate.
//!
//! A thread of autograd's that works for a forward line has two stacks that never called each other: its own native one, then
//! the line's.

use gpumemtrace_format::FrameLink;

/// A place in the merged stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MixedFrame {
    /// Index of a native frame.
    Native(usize),
    /// Index of a Python frame.
    Python(usize),
}

/// Both stacks in one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MixedStack {
    /// Innermost first; each frame of both stacks once, and those of one stack in their order.
    pub slots: Vec<MixedFrame>,
    /// False where it is not certain between which frames of the other stack a frame stands.
    pub is_exact: bool,
}

/// True for names of the evaluation loop: `_PyEval_EvalFrameDefault`, also split by a compiler (`.cold`, `.part.0`, `.lto_priv.0`),
/// and the functions that it consists of in an interpreter built with tail calls.
pub(crate) fn is_loop(function: &str) -> bool {
    is_part_of(function, "_PyEval_EvalFrameDefault") || function.starts_with("_TAIL_CALL_")
}

fn is_part_of(function: &str, whole: &str) -> bool {
    function.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Which native frames are of the loop, by the functions at each of them. `_PyEval_Vector` calls the loop; where no frame of the
/// loop has a name of its own since the last such call, it stands for it.
pub(crate) fn loops<'a, F>(frames: impl IntoIterator<Item = F>) -> Vec<bool>
where
    F: IntoIterator<Item = &'a str>,
{
    let mut had_loop = false;
    let mut loops = Vec::new();
    for functions in frames {
        let (mut here, mut calls) = (false, false);
        for function in functions {
            here |= is_loop(function);
            calls |= is_part_of(function, "_PyEval_Vector");
        }
        loops.push(here || calls && !had_loop);
        had_loop = !calls && (had_loop || here);
    }
    loops
}

/// Puts the Python frames where their loops are. Both innermost first; `loops` says of each native frame whether it is one.
pub(crate) fn merge(loops: &[bool], python: &[FrameLink]) -> MixedStack {
    let mut groups: Vec<usize> = Vec::new();
    let mut is_exact = loops.is_empty() || python.is_empty() || python[0] == FrameLink::Backward;
    if python.first() != Some(&FrameLink::Backward) {
        groups.extend(python.split_inclusive(|link| *link == FrameLink::C).map(<[FrameLink]>::len));
        let are_known = python.iter().all(|link| matches!(link, FrameLink::C | FrameLink::Python));
        is_exact |= are_known && groups.len() == loops.iter().filter(|is_loop| **is_loop).count();
    }
    let mut slots = Vec::with_capacity(loops.len() + python.len());
    let (mut groups, mut next) = (groups.into_iter(), 0);
    for (at, is_loop) in loops.iter().enumerate() {
        if *is_loop {
            let end = next + groups.next().unwrap_or(0);
            slots.extend((next..end).map(MixedFrame::Python));
            next = end;
        }
        slots.push(MixedFrame::Native(at));
    }
    // Frames whose loops are not among the native frames.
    slots.extend((next..python.len()).map(MixedFrame::Python));
    MixedStack { slots, is_exact }
}

#[cfg(test)]
mod tests {
    use super::MixedFrame::{Native as N, Python as P};
    use super::*;
    use gpumemtrace_format::FrameLink::{Backward, C, Python, Unknown};
    use proptest::prelude::*;

    const LOOP: bool = true;
    const OTHER: bool = false;

    #[test]
    fn one_loop_runs_all_frames() {
        let merged = merge(&[OTHER, LOOP, OTHER], &[Python, Python, C]);
        assert_eq!(merged, MixedStack { slots: vec![N(0), P(0), P(1), P(2), N(1), N(2)], is_exact: true });
    }

    #[test]
    fn each_frame_entered_from_c_has_a_loop_and_its_callees_share_it() {
        let merged = merge(&[OTHER, LOOP, OTHER, LOOP], &[Python, C, Python, Python, C]);
        assert_eq!(
            merged,
            MixedStack { slots: vec![N(0), P(0), P(1), N(1), N(2), P(2), P(3), P(4), N(3)], is_exact: true }
        );
    }

    #[test]
    fn what_does_not_add_up_is_approximate_and_right_innermost() {
        let merged = merge(&[LOOP, OTHER], &[Python, C, C]);
        assert_eq!(merged, MixedStack { slots: vec![P(0), P(1), N(0), N(1), P(2)], is_exact: false });
        let merged = merge(&[LOOP, LOOP], &[Python, C]);
        assert_eq!(merged, MixedStack { slots: vec![P(0), P(1), N(0), N(1)], is_exact: false });
        assert!(!merge(&[OTHER, OTHER], &[C]).is_exact, "a loop without a name");
        assert!(!merge(&[LOOP], &[Unknown]).is_exact);
        assert!(merge(&[], &[Python, C]).is_exact && merge(&[OTHER], &[]).is_exact);
    }

    #[test]
    fn the_forward_line_of_a_backward_thread_comes_after_all_of_it() {
        let merged = merge(&[OTHER, OTHER], &[Backward, Python, C]);
        assert_eq!(merged, MixedStack { slots: vec![N(0), N(1), P(0), P(1), P(2)], is_exact: true });
    }

    #[test]
    fn loops_are_known_by_name_in_all_their_parts() {
        let stack = [
            vec!["malloc"],
            vec!["_Py_DECREF", "_PyEval_EvalFrameDefault.cold"],
            vec!["_PyEval_Vector"],
            vec!["_PyEval_Vector"],
            vec!["_PyEval_EvalFrameDefault.lto_priv.0"],
            vec!["slot_tp_call"],
            vec!["_PyEval_EvalFrameDefaults"],
        ];
        assert_eq!(loops(stack), [false, true, false, true, true, false, false]);
    }

    proptest! {
        #[test]
        fn every_frame_is_there_once_and_each_stack_in_its_order(
            loops in proptest::collection::vec(any::<bool>(), 0..40), links in proptest::collection::vec(0..4u8, 0..40),
        ) {
            let links: Vec<FrameLink> = links.into_iter().map(FrameLink::from_number).collect();
            let slots = merge(&loops, &links).slots;
            let natives: Vec<usize> = slots.iter().filter_map(|slot| match slot { N(at) => Some(*at), P(_) => None }).collect();
            let pythons: Vec<usize> = slots.iter().filter_map(|slot| match slot { P(at) => Some(*at), N(_) => None }).collect();
            prop_assert!(natives.into_iter().eq(0..loops.len()));
            prop_assert!(pythons.into_iter().eq(0..links.len()));
            // Calls go from Python into C: the first loop is right behind the innermost Python frames.
            if let (Some(first), Some(link)) = (loops.iter().position(|is_loop| *is_loop), links.first()) {
                prop_assert!(*link == Backward || slots[first] == P(0));
            }
        }
    }
}
