//! Hooks of C++ functions with any arguments.
//!
//! A hook is a few bytes of code that load its [`Hook`] and jump to `simgpu_hooked_call`. That
//! keeps the arguments, and asks [`Hook::prepare`] for a plan. Without one, it jumps to the
//! original function with everything as it was. Otherwise the plan calls functions with the same
//! arguments: six in integer registers, eight in vector registers, and those on the stack. C++
//! exceptions pass through.

use std::arch::global_asm;

use crate::address_thunks::map_code;

/// What a hook does instead of the function. It returns what the function returns.
pub(crate) type Plan = Box<dyn FnOnce(&Hook, &CallFrame) -> u64>;

/// Decides whether a call is computed.
pub(crate) type Prepare = Box<dyn Fn(&CallFrame) -> Option<Plan> + Send + Sync>;

/// Arguments on the stack that are passed on, in words of 8 bytes.
const STACK_ARGUMENTS: usize = 6;

/// The arguments of a call, as `simgpu_hooked_call` stores them.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CallFrame {
    pub(crate) integers: [u64; 6],
    pub(crate) floats: [f64; 8],
    stack: *const [u64; STACK_ARGUMENTS],
    hook: *const Hook,
}

/// A hooked function: what it was, and what decides about its calls.
#[repr(C)]
pub(crate) struct Hook {
    /// PyTorch's CUDA function; 0 if there is none.
    pub(crate) original: u64,
    /// Its equal for the CPU; 0 if there is none.
    pub(crate) on_cpu: u64,
    pub(crate) prepare: Prepare,
}

type AnyFunction = unsafe extern "C-unwind" fn(
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
) -> u64;

impl CallFrame {
    /// Calls a function with the arguments of the frame.
    ///
    /// # Safety
    ///
    /// The function has the signature of the hooked one.
    pub(crate) unsafe fn call(&self, function: u64) -> u64 {
        // SAFETY: more arguments than the function has are ignored; none is on the stack unless
        // the caller put it there, and what lies behind them is only copied.
        unsafe {
            let function: AnyFunction = std::mem::transmute(function);
            let ([a, b, c, d, e, f], v, s) = (self.integers, self.floats, *self.stack);
            function(
                a, b, c, d, e, f, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], s[0], s[1], s[2], s[3],
                s[4], s[5],
            )
        }
    }

    /// An argument on the stack.
    pub(crate) fn on_stack(&self, index: usize) -> u64 {
        // SAFETY: the caller's stack has at least as many words.
        unsafe { (*self.stack)[index] }
    }
}

// The frame holds six integers at 0, eight floats at 48, the stack's arguments at 112, the hook at
// 120. 128 bytes keep the stack aligned.
global_asm!(
    ".globl simgpu_hooked_call",
    ".hidden simgpu_hooked_call",
    ".type simgpu_hooked_call, @function",
    "simgpu_hooked_call:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, 128",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "mov [rsp + 24], rcx",
    "mov [rsp + 32], r8",
    "mov [rsp + 40], r9",
    "movsd [rsp + 48], xmm0",
    "movsd [rsp + 56], xmm1",
    "movsd [rsp + 64], xmm2",
    "movsd [rsp + 72], xmm3",
    "movsd [rsp + 80], xmm4",
    "movsd [rsp + 88], xmm5",
    "movsd [rsp + 96], xmm6",
    "movsd [rsp + 104], xmm7",
    "lea rax, [rbp + 16]",
    "mov [rsp + 112], rax",
    "mov [rsp + 120], r11",
    "mov rdi, rsp",
    "call {prepare}",
    "test rax, rax",
    "jz 2f",
    "mov rdi, rsp",
    "mov rsi, rax",
    "call {run}",
    "leave",
    ".cfi_remember_state",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_restore_state",
    "2:",
    "mov rdi, [rsp + 120]",
    "mov r11, [rdi]",
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdx, [rsp + 16]",
    "mov rcx, [rsp + 24]",
    "mov r8, [rsp + 32]",
    "mov r9, [rsp + 40]",
    "movsd xmm0, [rsp + 48]",
    "movsd xmm1, [rsp + 56]",
    "movsd xmm2, [rsp + 64]",
    "movsd xmm3, [rsp + 72]",
    "movsd xmm4, [rsp + 80]",
    "movsd xmm5, [rsp + 88]",
    "movsd xmm6, [rsp + 96]",
    "movsd xmm7, [rsp + 104]",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "jmp r11",
    ".cfi_endproc",
    ".size simgpu_hooked_call, . - simgpu_hooked_call",
    prepare = sym prepare,
    run = sym run,
);

unsafe extern "C" {
    fn simgpu_hooked_call();
}

/// The plan of a call, or null to go on with the original function.
unsafe extern "C" fn prepare(frame: *const CallFrame) -> *mut Plan {
    // SAFETY: the frame that `simgpu_hooked_call` made, and its hook, which is never freed.
    let (frame, hook) = unsafe { (&*frame, &*(*frame).hook) };
    (hook.prepare)(frame).map_or(std::ptr::null_mut(), |plan| Box::into_raw(Box::new(plan)))
}

unsafe extern "C-unwind" fn run(frame: *const CallFrame, plan: *mut Plan) -> u64 {
    // SAFETY: the frame as above, and the plan that `prepare` returned for it.
    let (plan, frame, hook) = unsafe { (*Box::from_raw(plan), &*frame, &*(*frame).hook) };
    plan(hook, frame)
}

/// A CUDA function that does nothing, where PyTorch has none.
extern "C" fn nothing() {}

/// Makes the code of hooks. Returns the address of each; `None` if the host forbids executable
/// pages. The hooks are never freed, because PyTorch keeps the addresses.
pub(crate) fn make(hooks: Vec<Hook>) -> Option<Vec<u64>> {
    let code = |mut hook: Hook| {
        if hook.original == 0 {
            hook.original = nothing as *const () as u64;
        }
        let hook: &'static Hook = Box::leak(Box::new(hook));
        // mov r11, imm64; mov rax, imm64; jmp rax
        let mut code = [0xCC_u8; 32];
        code[..2].copy_from_slice(&[0x49, 0xBB]);
        code[2..10].copy_from_slice(&(std::ptr::from_ref(hook) as u64).to_le_bytes());
        code[10..12].copy_from_slice(&[0x48, 0xB8]);
        code[12..20].copy_from_slice(&(simgpu_hooked_call as *const () as u64).to_le_bytes());
        code[20..22].copy_from_slice(&[0xFF, 0xE0]);
        code
    };
    let codes: Vec<[u8; 32]> = hooks.into_iter().map(code).collect();
    Some(map_code(&codes)?.into_iter().map(|address| address as u64).collect())
}
