//! What hooks of kernels with an iterator do: each plan computes the result in its own way, and
//! then calls CUDA's kernel. That comes second because it changes its iterator.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::call_frame::{CallFrame, Hook, Plan};
use super::known_bytes::{self, Knowledge};
use super::one_thread::OneThread;
use super::program_zeros;
use super::scalar_type::{ScalarType, Value};
use super::tensor_iterator::{ComputedIn, Converted, Iteration, Operand};
use super::view::View;

/// Makes a plan of what is done before CUDA's kernel is called.
fn before_cuda(compute: impl FnOnce(&Hook, &CallFrame) + 'static) -> Plan {
    Box::new(move |hook, frame| {
        compute(hook, frame);
        // SAFETY: CUDA's kernel of the stub that was called with these arguments.
        unsafe { frame.call(hook.original) }
    })
}

/// Calls the CPU's kernel. `converted` are inputs that it reads in another type.
pub(crate) fn call_cpu(results: Vec<View>, knowledge: Knowledge, converted: Vec<Converted>) -> Plan {
    before_cuda(move |hook, frame| {
        let one_thread = OneThread::begin();
        // SAFETY: the CPU's kernel of the stub that was called with these arguments.
        unsafe { frame.call(hook.on_cpu) };
        drop((converted, one_thread));
        for view in &results {
            view.on_computed(knowledge);
        }
    })
}

/// Calls the CPU's kernel with all operands as `float`.
pub(crate) fn call_cpu_in_float(
    iteration: &Iteration,
    result: &Operand,
    inputs: &[Operand],
    knowledge: Knowledge,
) -> Option<Plan> {
    let operands = inputs.iter().chain([result]);
    // SAFETY: operands of the iterator that the kernel is called with; they are small, so live.
    let mut converted = operands
        .map(|operand| unsafe { Converted::new(operand, ScalarType::FLOAT) })
        .collect::<Option<Vec<_>>>()?;
    // SAFETY: as above.
    let type_of_kernel = unsafe { ComputedIn::new(iteration, ScalarType::FLOAT)? };
    let (view, computed) = (result.view, converted.pop()?);
    Some(before_cuda(move |hook, frame| {
        // SAFETY: the CPU's kernel of the stub that was called with these arguments; its result.
        unsafe {
            frame.call(hook.on_cpu);
            view.write(computed.values());
        }
        drop((converted, computed, type_of_kernel));
        view.on_computed(knowledge);
    }))
}

/// Writes one value to all elements.
pub(crate) fn write(view: View, value: Value, knowledge: Knowledge) -> Plan {
    before_cuda(move |_, _| {
        let view = view.without_repetition();
        // SAFETY: the result of a kernel.
        unsafe { view.write(std::iter::repeat(value)) };
        view.on_computed(knowledge);
    })
}

/// Fills a tensor that has elements. Zeros of floating-point types that the program did not ask for
/// are often what kernels add results to, so they count as placeholders. So does NaN, the mean of
/// nothing: a mask of placeholders may have selected nothing.
pub(crate) fn fill(result: View) -> Plan {
    before_cuda(move |hook, frame| {
        // SAFETY: the CPU's kernel of the stub that was called with these arguments; the result has
        // a first element.
        let value = unsafe {
            frame.call(hook.on_cpu);
            Value::read(result.addr, result.kind)
        };
        let is_of_program = !result.kind.is_floating() || program_zeros::are_asked_for();
        if !is_of_program && value.real().is_nan() {
            // SAFETY: the result of a kernel.
            unsafe { result.write(std::iter::repeat(Value::Real(0.0))) };
        }
        let is_known = is_of_program || value.is_true() && !value.real().is_nan();
        result.on_computed(if is_known { Knowledge::Known } else { Knowledge::Placeholder });
    })
}

/// Takes each element from the second or the third input, by the first. Where that is known, each
/// element is known as its source is.
pub(crate) fn select(result: View, inputs: &[Operand]) -> Plan {
    let knowledge = least_known(inputs);
    let inputs = inputs.to_vec();
    before_cuda(move |hook, frame| {
        // SAFETY: the CPU's kernel of the stub that was called with these arguments.
        unsafe { frame.call(hook.on_cpu) };
        result.on_computed(knowledge);
        if let [condition, choices @ ..] = &inputs[..]
            && knowledge < Knowledge::Known
            && condition.view.knowledge() == Knowledge::Known
        {
            follow_choices(&result, &condition.view, choices);
        }
    })
}

fn follow_choices(result: &View, condition: &View, choices: &[Operand]) {
    let Some(size) = result.kind.size_bytes() else { return };
    // SAFETY: an input of the kernel.
    let conditions = unsafe { condition.values() };
    let sources: Vec<Vec<u64>> = choices.iter().map(|choice| choice.view.addresses()).collect();
    for (at, (place, condition)) in result.addresses().into_iter().zip(conditions).enumerate() {
        let chosen = usize::from(!condition.is_true());
        let Some((choice, source)) = choices.get(chosen).zip(sources.get(chosen).and_then(|all| all.get(at)))
        else {
            return;
        };
        let knowledge =
            if choice.is_on_gpu { known_bytes::knowledge(*source, size) } else { Knowledge::Known };
        known_bytes::on_written(place, size, knowledge);
    }
}

/// The mean of known elements.
pub(crate) fn mean(result: View, input: View) -> Plan {
    before_cuda(move |_, _| {
        let mut sums: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        // SAFETY: an input of the kernel.
        let values = unsafe { input.values() };
        for (place, value) in result.addresses().into_iter().zip(values) {
            let (sum, count) = sums.entry(place).or_default();
            *sum += value.real();
            *count += 1.0;
        }
        for (place, (sum, count)) in sums {
            // SAFETY: an element of the result.
            unsafe { Value::Real(sum / count).write(place, result.kind) };
        }
        result.on_computed(Knowledge::Known);
    })
}

/// Integers from `first` on that look random, and are the same in every run.
pub(crate) fn random(result: View, range: u64, first: u64) -> Option<Plan> {
    static STATE: AtomicU64 = AtomicU64::new(0);
    if result.kind.is_floating() || range == 0 {
        return None;
    }
    Some(before_cuda(move |_, _| {
        let numbers = std::iter::repeat_with(|| {
            // SplitMix64: https://prng.di.unimi.it/splitmix64.c
            let state = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            Value::Integer(first.wrapping_add((mixed ^ (mixed >> 31)) % range) as i64)
        });
        // SAFETY: the result of a kernel.
        unsafe { result.write(numbers) };
        result.on_computed(Knowledge::Placeholder);
    }))
}

/// The least that is known of the inputs. Numbers of the host are known.
pub(crate) fn least_known(inputs: &[Operand]) -> Knowledge {
    known_bytes::least(inputs.iter().filter(|input| input.is_on_gpu).map(|input| input.view.knowledge()))
}
