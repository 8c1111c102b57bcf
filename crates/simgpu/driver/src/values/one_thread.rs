//! Lets kernels of the CPU use one thread.
//!
//! A reduction by several threads takes a buffer from the allocator of the result's device, which
//! is an allocation that a GPU does not make:
//! <https://github.com/pytorch/pytorch/blob/v2.9.1/aten/src/ATen/native/TensorIteratorReduce.cpp>.

use std::sync::OnceLock;

use super::loaded_library::LoadedLibrary;

/// PyTorch's function for the number of threads, and the place of its pointer to OpenMP's function
/// that sets it.
static FOUND: OnceLock<(u64, u64)> = OnceLock::new();

pub(crate) fn find_functions(cpu: &LoadedLibrary) {
    const GET: &str = "_ZN2at15get_num_threadsEv";
    let set = cpu.offset_table(|name| name == "omp_set_num_threads").first().map(|entry| entry.1);
    if let (Some(&get), Some(set)) = (cpu.symbols(|name| name == GET).get(GET), set) {
        let _ = FOUND.set((get, set));
    }
}

/// One thread for kernels of the calling thread, until it is dropped.
pub(crate) struct OneThread(i32);

impl OneThread {
    pub(crate) fn begin() -> Option<Self> {
        let &(get, _) = FOUND.get()?;
        // SAFETY: `int at::get_num_threads()`.
        let threads = unsafe { std::mem::transmute::<u64, extern "C" fn() -> i32>(get)() };
        set_threads(1);
        Some(Self(threads))
    }
}

impl Drop for OneThread {
    fn drop(&mut self) {
        set_threads(self.0);
    }
}

fn set_threads(threads: i32) {
    if let Some(&(_, set)) = FOUND.get() {
        // SAFETY: an entry of the offset table, for `void omp_set_num_threads(int)`.
        unsafe { std::mem::transmute::<u64, extern "C" fn(i32)>(*(set as *const u64))(threads) }
    }
}
