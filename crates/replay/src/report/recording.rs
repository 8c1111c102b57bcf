//! Words on a recording: the allocator, the end of the process, and missing names.

use super::json_enum::json_enum;

json_enum! {
    /// How gpumemtrace was PyTorch's pluggable allocator.
    enum PluggableMode {
        /// Its caching allocator served all tensors.
        Caching = "caching",
        /// Each tensor was a call of the driver.
        Uncached = "uncached",
        /// It served the segments of a `torch.cuda.MemPool`.
        Segments = "segments",
    }
}

json_enum! {
    /// The kind of the devices of a snapshot, if they are no GPUs of NVIDIA.
    enum Accelerator {
        /// AMD GPUs; the allocator is the code of CUDA's.
        Rocm = "rocm",
        /// Intel GPUs; the allocator rounds like CUDA's.
        Xpu = "xpu",
        /// Ascend NPUs; the allocator may pad each request.
        Npu = "npu",
    }
}

json_enum! {
    /// How the process ended.
    enum Ending {
        /// The process exited normally.
        Exit = "exit",
        /// It was killed, or ended without closing the trace.
        Killed = "killed",
        /// The process crashed by itself.
        Crashed = "crashed",
        /// It is still running.
        Running = "running",
    }
}

json_enum! {
    /// What marks the end of the program.
    enum EndMoment {
        /// Interpreter teardown began: memory was freed after the main module had ended.
        BeforeTeardown = "before_teardown",
        /// The last frees began, in a run without Python stacks.
        BeforeLastFrees = "before_last_frees",
        /// No teardown was recorded: the process was killed, still runs, or freed nothing more.
        LastEvent = "last_event",
    }
}

json_enum! {
    /// Why an address has no name.
    enum UnnamedReason {
        /// The file of the module, and debug files of its build id, are missing.
        FileMissing = "file_missing",
        /// The file is another build.
        OtherBuild = "other_build",
        /// The module has no build id, so no file can be matched with it.
        NoBuildId = "no_build_id",
        /// The file has no symbol at this address.
        NoSymbols = "no_symbols",
        /// The file cannot be read, or is not an ELF file.
        Unreadable = "unreadable",
        /// The address is in no module: code made at run time.
        NoModule = "no_module",
    }
}
