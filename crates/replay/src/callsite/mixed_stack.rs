//! Merges the Python and native frames of one thread into call order.
//!
//! The recorder walks the two stacks separately, so neither has pointers into the other. The merge
//! relies on CPython's structure instead. Its evaluation loop (`_PyEval_EvalFrameDefault`) runs the
//! Python frames. Each native frame of the loop stands for a group of them. A group is a frame
//! entered from C ([`FrameLink::C`]) and the frames that it calls, up to the next one entered from
//! C. The numbers of loops and groups must be equal. They differ if the interpreter has no symbols
//! or a stack was truncated. The innermost frames are then in their place, and the order of the
//! others is marked approximate.
//!
//! An autograd thread with a forward line has two stacks that never called each other. Its own
//! frames come first, then the stack of the forward line. The merge is linear in the number
//! of frames and runs only for stacks that a report shows.

use gpumemtrace_format::FrameLink;

/// One frame of the merged stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MixedFrame {
    /// Index of a native frame.
    Native(usize),
    /// Index of a Python frame.
    Python(usize),
}

/// Both stacks in call order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MixedStack {
    /// All frames of both stacks, innermost first; frames of one stack keep their order.
    pub slots: Vec<MixedFrame>,
    /// False if the order between frames of different stacks is uncertain.
    pub is_exact: bool,
}

/// True for functions of the evaluation loop: `_PyEval_EvalFrameDefault`, its parts split off by a
/// compiler (`.cold`, `.part.0`, `.lto_priv.0`), and its pieces in an interpreter with tail calls.
pub(crate) fn is_eval_loop(function: &str) -> bool {
    is_function_or_part(function, "_PyEval_EvalFrameDefault") || function.starts_with("_TAIL_CALL_")
}

/// True for `whole` and for its parts split off by a compiler.
fn is_function_or_part(function: &str, whole: &str) -> bool {
    function.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// True for each native frame that is an evaluation loop. `frames` has the functions at each
/// frame, innermost first. `_PyEval_Vector` calls the loop, and stands for it if no frame below it
/// has the loop's name.
pub(crate) fn find_eval_loops<'a, F>(frames: impl IntoIterator<Item = F>) -> Vec<bool>
where
    F: IntoIterator<Item = &'a str>,
{
    let mut had_loop = false;
    let mut loops = Vec::new();
    for functions in frames {
        let (mut is_loop, mut calls_loop) = (false, false);
        for function in functions {
            is_loop |= is_eval_loop(function);
            calls_loop |= is_function_or_part(function, "_PyEval_Vector");
        }
        loops.push(is_loop || calls_loop && !had_loop);
        had_loop = !calls_loop && (had_loop || is_loop);
    }
    loops
}

/// Inserts each group of Python frames before its evaluation loop. `loops` has an entry per native
/// frame; both stacks are innermost first.
pub(crate) fn merge_stacks(loops: &[bool], python: &[FrameLink]) -> MixedStack {
    let mut groups: Vec<usize> = Vec::new();
    let backward = python.iter().position(|link| *link == FrameLink::Backward);
    let own = &python[..backward.unwrap_or(python.len())];
    let mut is_exact = loops.is_empty() || own.is_empty();
    if !own.is_empty() {
        groups.extend(own.split_inclusive(|link| *link == FrameLink::C).map(<[FrameLink]>::len));
        let has_known_links = own.iter().all(|link| matches!(link, FrameLink::C | FrameLink::Python));
        is_exact |= has_known_links && groups.len() == loops.iter().filter(|is_loop| **is_loop).count();
    }
    let mut slots = Vec::with_capacity(loops.len() + python.len());
    let (mut groups, mut next) = (groups.into_iter(), 0);
    for (index, is_loop) in loops.iter().enumerate() {
        if *is_loop {
            let end = next + groups.next().unwrap_or(0);
            slots.extend((next..end).map(MixedFrame::Python));
            next = end;
        }
        slots.push(MixedFrame::Native(index));
    }
    // Groups without a loop among the native frames.
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
    fn one_loop_takes_all_python_frames() {
        let merged = merge_stacks(&[OTHER, LOOP, OTHER], &[Python, Python, C]);
        assert_eq!(merged, MixedStack { slots: vec![N(0), P(0), P(1), P(2), N(1), N(2)], is_exact: true });
    }

    #[test]
    fn each_frame_entered_from_c_has_a_loop_shared_with_its_callees() {
        let merged = merge_stacks(&[OTHER, LOOP, OTHER, LOOP], &[Python, C, Python, Python, C]);
        assert_eq!(
            merged,
            MixedStack { slots: vec![N(0), P(0), P(1), N(1), N(2), P(2), P(3), P(4), N(3)], is_exact: true }
        );
    }

    #[test]
    fn unequal_loops_and_groups_are_approximate_but_right_innermost() {
        let merged = merge_stacks(&[LOOP, OTHER], &[Python, C, C]);
        assert_eq!(merged, MixedStack { slots: vec![P(0), P(1), N(0), N(1), P(2)], is_exact: false });
        let merged = merge_stacks(&[LOOP, LOOP], &[Python, C]);
        assert_eq!(merged, MixedStack { slots: vec![P(0), P(1), N(0), N(1)], is_exact: false });
        assert!(!merge_stacks(&[OTHER, OTHER], &[C]).is_exact, "no symbol for the loop");
        assert!(!merge_stacks(&[LOOP], &[Unknown]).is_exact);
        assert!(merge_stacks(&[], &[Python, C]).is_exact && merge_stacks(&[OTHER], &[]).is_exact);
    }

    #[test]
    fn forward_line_follows_the_native_stack_of_a_backward_thread() {
        let merged = merge_stacks(&[OTHER, OTHER], &[Backward, Python, C]);
        assert_eq!(merged, MixedStack { slots: vec![N(0), N(1), P(0), P(1), P(2)], is_exact: true });
    }

    #[test]
    fn eval_loops_are_found_by_the_names_of_all_their_parts() {
        let stack = [
            vec!["malloc"],
            vec!["_Py_DECREF", "_PyEval_EvalFrameDefault.cold"],
            vec!["_PyEval_Vector"],
            vec!["_PyEval_Vector"],
            vec!["_PyEval_EvalFrameDefault.lto_priv.0"],
            vec!["slot_tp_call"],
            vec!["_PyEval_EvalFrameDefaults"],
        ];
        assert_eq!(find_eval_loops(stack), [false, true, false, true, true, false, false]);
    }

    proptest! {
        #[test]
        fn merged_stack_has_every_frame_once_and_keeps_both_orders(
            loops in proptest::collection::vec(any::<bool>(), 0..40), links in proptest::collection::vec(0..4u8, 0..40),
        ) {
            let links: Vec<FrameLink> = links.into_iter().map(FrameLink::from_number).collect();
            let slots = merge_stacks(&loops, &links).slots;
            let natives: Vec<usize> = slots.iter().filter_map(|slot| match slot { N(at) => Some(*at), P(_) => None }).collect();
            let pythons: Vec<usize> = slots.iter().filter_map(|slot| match slot { P(at) => Some(*at), N(_) => None }).collect();
            prop_assert!(natives.into_iter().eq(0..loops.len()));
            prop_assert!(pythons.into_iter().eq(0..links.len()));
            // Python code calls into C, so the innermost Python frame precedes the first loop.
            if let (Some(first), Some(link)) = (loops.iter().position(|is_loop| *is_loop), links.first()) {
                prop_assert!(*link == Backward || slots[first] == P(0));
            }
        }
    }
}
