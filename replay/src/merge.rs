//! Python and native frames of one thread, in the order in which they called each other.
//!
//! Constraint: the two stacks are walked apart, and nothing in the one points into the other. Consequence: what is known of
//! CPython is used. Python frames are run by its evaluation loop, so each native frame of that loop (`_PyEval_EvalFrameDefault`)
//! is where Python frames belong: one in versions before 3.11; since then one or more, up to and with the frame that was entered
//! from C. Where the trace does not tell which frames were, the order is exact only if
//! * there is one loop (it runs all frames), or
//! * there are as many loops as frames (each runs at least one).
//!
//! Everywhere else the frames are shared out by what their names suggest (most loops that C entered through `slot_tp_call` were
//! entered by a special method), and the order is called approximate. The two stacks themselves are never changed, and the innermost Python frame always belongs to
//! the innermost loop.

/// Whether a Python frame was entered from C, by a loop of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Entry {
    /// It was.
    Yes,
    /// It shares the loop of its caller.
    No,
    /// The trace does not tell.
    #[default]
    Unknown,
}

/// Python 3.11, as `CodeDef::python` has it: the first version whose loop runs more than one frame.
const FIRST_SHARED_LOOP: u16 = 0x030b;

impl Entry {
    /// What the version alone tells; 0 is an unknown one.
    pub fn of_code(python: u16) -> Self {
        if (1..FIRST_SHARED_LOOP).contains(&python) { Self::Yes } else { Self::Unknown }
    }
}

/// A native frame, as far as merging asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Native {
    /// Of the evaluation loop.
    Loop,
    /// Calls a special method of a class that Python code defines (`slot_tp_call`).
    Slot,
    /// Any other.
    Other,
}

/// A Python frame, as far as merging asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PythonFrame {
    /// Entered from C?
    pub entry: Entry,
    /// What its name suggests, where that is not known.
    pub hint: Hint,
}

/// What the names of a frame and of its caller suggest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    /// A special method, or what stands for one in PyTorch's modules: C enters it through a slot.
    Special,
    /// Part of a call of a PyTorch module, which calls bound methods with `*args`: C enters those.
    ModuleCall,
    /// Nothing.
    None,
}

/// A place in the merged stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// Index of a native frame.
    Native(usize),
    /// Index of a Python frame.
    Python(usize),
}

/// Both stacks in one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Merged {
    /// Innermost first; each frame of both stacks once, and those of one stack in their order.
    pub slots: Vec<Slot>,
    /// False where it is not certain between which frames of the other stack a frame stands.
    pub is_exact: bool,
}

/// True for names of the evaluation loop: `_PyEval_EvalFrameDefault`, also split by a compiler (`.cold`, `.part.0`, `.lto_priv.0`),
/// and the functions that it consists of in an interpreter built with tail calls.
pub fn is_loop(function: &str) -> bool {
    is_part_of(function, "_PyEval_EvalFrameDefault") || function.starts_with("_TAIL_CALL_")
}

fn is_part_of(function: &str, whole: &str) -> bool {
    function.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// What native frames are, by the functions at each of them. `_PyEval_Vector` calls the loop; where no frame of the loop has a
/// name of its own since the last such call, it stands for it.
pub fn natives<'a, F>(frames: impl IntoIterator<Item = F>) -> Vec<Native>
where
    F: IntoIterator<Item = &'a str>,
{
    let mut had_loop = false;
    let mut natives = Vec::new();
    for functions in frames {
        let (mut here, mut calls, mut slot) = (false, false, false);
        for function in functions {
            here |= is_loop(function);
            calls |= is_part_of(function, "_PyEval_Vector");
            slot |= function.starts_with("slot_");
        }
        natives.push(match here || calls && !had_loop {
            true => Native::Loop,
            false if slot => Native::Slot,
            false => Native::Other,
        });
        had_loop = if calls { false } else { had_loop || here };
    }
    natives
}

/// From the name of a frame's function and that of its caller.
pub fn hint(function: &str, caller: &str) -> Hint {
    let last = |function: &str| function.rsplit('.').next().unwrap_or(function).to_owned();
    let name = last(function);
    if name.len() > 4 && name.starts_with("__") && name.ends_with("__") || name == "_wrapped_call_impl" {
        Hint::Special
    } else if name == "_call_impl" || last(caller) == "_call_impl" {
        Hint::ModuleCall
    } else {
        Hint::None
    }
}

/// Puts the Python frames where their loops are. Both innermost first.
pub fn merge(native: &[Native], python: &[PythonFrame]) -> Merged {
    let (shares, is_exact) = shares(native, python);
    let mut slots = Vec::with_capacity(native.len() + python.len());
    let (mut shares, mut next) = (shares.into_iter(), 0);
    for (at, frame) in native.iter().enumerate() {
        if *frame == Native::Loop {
            let end = next + shares.next().unwrap_or(0);
            slots.extend((next..end).map(Slot::Python));
            next = end;
        }
        slots.push(Slot::Native(at));
    }
    // Frames whose loops are beyond the end of the native stack.
    slots.extend((next..python.len()).map(Slot::Python));
    Merged { slots, is_exact: is_exact || native.is_empty() || python.is_empty() }
}

/// How many Python frames each loop runs, innermost first, and whether that is certain. They sum to at most all frames.
fn shares(native: &[Native], python: &[PythonFrame]) -> (Vec<usize>, bool) {
    let loops = native.iter().filter(|frame| **frame == Native::Loop).count();
    let all = python.len();
    if loops == 0 || all == 0 {
        return (Vec::new(), false);
    }
    if python.iter().all(|frame| frame.entry != Entry::Unknown) {
        let groups = python.split_inclusive(|frame| frame.entry == Entry::Yes);
        let shares: Vec<usize> = groups.map(<[PythonFrame]>::len).collect();
        let is_exact = shares.len() == loops;
        return (shares, is_exact);
    }
    if loops >= all {
        return (vec![1; all], loops == all);
    }
    (likely_shares(&through_slot(native), python), loops == 1)
}

/// Whether each loop was entered through a special method.
fn through_slot(native: &[Native]) -> Vec<bool> {
    let mut loops: Vec<bool> = Vec::new();
    for frame in native {
        match frame {
            Native::Loop => loops.push(false),
            Native::Slot => loops.iter_mut().last().into_iter().for_each(|last| *last = true),
            Native::Other => {}
        }
    }
    loops
}

/// Of all ways to share the frames out the one in which most loops were entered by a frame that fits how it was; of several the
/// one that gives outer loops more, where programs have their own frames. Fewer loops than frames.
fn likely_shares(through_slot: &[bool], python: &[PythonFrame]) -> Vec<usize> {
    const IMPOSSIBLE: i64 = i64::MIN / 2;
    let fits = |slot: bool, frame: &PythonFrame| match frame.entry {
        Entry::Yes => 1000,
        Entry::No => -1000,
        Entry::Unknown => match (frame.hint, slot) {
            (Hint::Special, true) | (Hint::ModuleCall, false) => 2,
            (Hint::None, false) => 1,
            _ => 0,
        },
    };
    // best[end]: how well the loops so far fit if they run the frames before `end`; `begins` tells where the last one begins.
    let mut best = vec![IMPOSSIBLE; python.len() + 1];
    best[0] = 0;
    let mut begins: Vec<Vec<usize>> = Vec::new();
    for slot in through_slot {
        let mut next = vec![IMPOSSIBLE; python.len() + 1];
        let mut begin = vec![0; python.len() + 1];
        let mut from = 0;
        for (at, frame) in python.iter().enumerate() {
            if best[at] > best[from] {
                from = at;
            }
            next[at + 1] = (best[from] + fits(*slot, frame)).max(IMPOSSIBLE);
            begin[at + 1] = from;
        }
        best = next;
        begins.push(begin);
    }
    let mut end = python.len();
    let mut shares: Vec<usize> = Vec::with_capacity(begins.len());
    for begin in begins.iter().rev() {
        shares.push(end - begin[end]);
        end = begin[end];
    }
    shares.reverse();
    shares
}

#[cfg(test)]
mod tests {
    use super::Native::{Loop, Other, Slot};
    use super::Slot::{Native as N, Python as P};
    use super::*;
    use proptest::prelude::*;

    fn unknown(names: &[&str]) -> Vec<PythonFrame> {
        let hint = |at: usize| hint(names[at], names.get(at + 1).unwrap_or(&""));
        (0..names.len()).map(|at| PythonFrame { entry: Entry::Unknown, hint: hint(at) }).collect()
    }

    fn known(entries: &[Entry]) -> Vec<PythonFrame> {
        entries.iter().map(|&entry| PythonFrame { entry, hint: Hint::None }).collect()
    }

    #[test]
    fn one_loop_runs_all_frames() {
        let merged = merge(&[Other, Loop, Other], &unknown(&["f", "g", "main"]));
        assert_eq!(merged, Merged { slots: vec![N(0), P(0), P(1), P(2), N(1), N(2)], is_exact: true });
    }

    #[test]
    fn as_many_loops_as_frames_have_one_each() {
        let merged = merge(&[Other, Loop, Other, Loop], &unknown(&["f", "main"]));
        assert_eq!(merged, Merged { slots: vec![N(0), P(0), N(1), N(2), P(1), N(3)], is_exact: true });
    }

    #[test]
    fn before_3_11_each_loop_has_one_frame() {
        assert_eq!(Entry::of_code(0x030a), Entry::Yes);
        assert_eq!([0, 0x030b, 0x030d].map(Entry::of_code), [Entry::Unknown; 3]);
        let merged = merge(&[Loop, Other, Loop], &known(&[Entry::Yes; 2]));
        assert_eq!(merged, Merged { slots: vec![P(0), N(0), N(1), P(1), N(2)], is_exact: true });
    }

    #[test]
    fn entries_that_are_known_place_every_frame() {
        use Entry::{No, Yes};
        let merged = merge(&[Other, Loop, Other, Loop], &known(&[No, Yes, No, No, Yes]));
        assert_eq!(
            merged,
            Merged { slots: vec![N(0), P(0), P(1), N(1), N(2), P(2), P(3), P(4), N(3)], is_exact: true }
        );
    }

    #[test]
    fn otherwise_names_decide_and_the_order_is_approximate() {
        let names = ["f", "forward", "Module._call_impl", "Module._wrapped_call_impl", "train", "main"];
        let merged = merge(&[Loop, Other, Loop, Other, Loop, Slot, Loop], &unknown(&names));
        assert_eq!(
            merged,
            Merged {
                slots: vec![P(0), P(1), N(0), N(1), P(2), N(2), N(3), P(3), N(4), N(5), P(4), P(5), N(6)],
                is_exact: false
            }
        );
        // Nothing to go by: what lies outside is the program's own.
        let merged = merge(&[Loop, Loop], &unknown(&["f", "g", "main"]));
        assert_eq!(merged, Merged { slots: vec![P(0), N(0), P(1), P(2), N(1)], is_exact: false });
        assert_eq!(hint("Tensor.__torch_function__", ""), Hint::Special);
        assert_eq!(hint("Module.forward", "main"), Hint::None);
    }

    #[test]
    fn without_a_loop_python_frames_come_last() {
        let merged = merge(&[Other, Other], &unknown(&["f"]));
        assert_eq!(merged, Merged { slots: vec![N(0), N(1), P(0)], is_exact: false });
        assert!(merge(&[], &unknown(&["f", "main"])).is_exact && merge(&[Other], &[]).is_exact);
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
        assert_eq!(natives(stack), [Other, Loop, Other, Loop, Loop, Slot, Other]);
    }

    proptest! {
        #[test]
        fn every_frame_is_there_once_and_each_stack_in_its_order(
            native in proptest::collection::vec(0..3u8, 0..40), python in proptest::collection::vec((0..3u8, 0..3u8), 0..40),
        ) {
            let python: Vec<PythonFrame> = python
                .into_iter()
                .map(|(entry, hint)| PythonFrame {
                    entry: [Entry::Yes, Entry::No, Entry::Unknown][usize::from(entry)],
                    hint: [Hint::Special, Hint::ModuleCall, Hint::None][usize::from(hint)],
                })
                .collect();
            let native: Vec<Native> =
                native.into_iter().map(|kind| [Loop, Slot, Other][usize::from(kind)]).collect();
            let slots = merge(&native, &python).slots;
            let natives: Vec<usize> = slots.iter().filter_map(|slot| match slot { N(at) => Some(*at), P(_) => None }).collect();
            let pythons: Vec<usize> = slots.iter().filter_map(|slot| match slot { P(at) => Some(*at), N(_) => None }).collect();
            prop_assert!(natives.into_iter().eq(0..native.len()));
            prop_assert!(pythons.into_iter().eq(0..python.len()));
            // Calls go from Python into C: the first loop is right behind the innermost Python frames.
            if let (Some(first), false) = (native.iter().position(|frame| *frame == Loop), python.is_empty()) {
                prop_assert_eq!(slots[first], P(0));
            }
        }
    }
}
