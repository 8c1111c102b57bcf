//! Frames that a snapshot has as texts, and the mark between a backward pass and its forward call.

use gpumemtrace_format::source_path::file_name;

/// File of a frame without one, as PyTorch writes it.
const UNKNOWN_FILE: &str = "??";

/// The name of the frame between the backward pass and the forward call that it belongs to. Its
/// file is `??`. `gpumemtrace export torch-snapshot` writes it, too.
pub const BACKWARD_FRAME: &str = "<backward>";

pub(super) const BACKWARD_MARK: FrameText<'static> = (UNKNOWN_FILE, 0, BACKWARD_FRAME);

/// True for the frame that marks a backward pass.
pub(crate) fn is_backward_mark(file: &str, name: &str) -> bool {
    file == UNKNOWN_FILE && name == BACKWARD_FRAME
}

/// File, line and function of a frame.
pub(super) type FrameText<'a> = (&'a str, u32, &'a str);

/// The frame in a text of `forward_frames`, which has the form of Python's `traceback`:
/// `  File "train.py", line 7, in forward`, then source code.
pub(super) fn parse_traceback_frame(text: &str) -> Option<FrameText<'_>> {
    let first = text.trim_start().lines().next()?;
    let (file, rest) = first.strip_prefix("File \"")?.rsplit_once("\", line ")?;
    let (line, name) = rest.split_once(", in ")?;
    Some((file, line.parse().ok()?, name))
}

/// The frame in a name that PyTorch's profiler gives to a call of Python: `train.py(7): forward`.
pub(super) fn parse_profiler_frame(name: &str) -> Option<FrameText<'_>> {
    let (place, function) = name.split_once("): ")?;
    let (file, line) = place.rsplit_once('(')?;
    Some((file, line.parse().ok()?, function))
}

/// True for a frame of Python, by its file: C++ frames (`stacks="all"`) have a source file, a
/// library or `??`.
pub(crate) fn is_python(file: &str, name: &str) -> bool {
    let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
    if matches!(extension, "py" | "pyx") || file.starts_with('<') {
        return true;
    }
    let last = file_name(file);
    let has_native_name = name.contains("::") || name.contains('(') || name.starts_with('_') || name == "??";
    // Typed code and scripts without an extension, such as a console script.
    !last.is_empty() && !last.starts_with(UNKNOWN_FILE) && !last.contains('.') && !has_native_name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_python_are_told_from_native_ones_by_their_file() {
        for (file, name) in [
            ("train.py", "step"),
            ("<string>", "f"),
            ("/usr/bin/torchrun", "main"),
            ("<ipython-input-3>", "f"),
            (r"C:\x.y\Scripts\torchrun", "main"),
        ] {
            assert!(is_python(file, name), "{file}");
        }
        for (file, name) in [
            ("??", "torch::autograd::Engine::thread_main()"),
            ("", "f"),
            ("/build/c10/cuda/CUDACachingAllocator.cpp", "malloc"),
            ("??:0", "main"),
            ("/x/libtorch_cpu.so", "at::empty(int)"),
            ("/usr/local/bin/python3", "_start"),
            (r"C:\torch\lib\c10.dll", "f"),
        ] {
            assert!(!is_python(file, name), "{file}");
        }
    }

    #[test]
    fn texts_of_frames_are_parsed_and_others_are_none() {
        let text = "  File \"/a \"b\", line 9.py\", line 12, in fit\n    run(\"x\", line 3, in y)\n    ^^^\n";
        assert_eq!(parse_traceback_frame(text), Some(("/a \"b\", line 9.py", 12, "fit")));
        for text in
            ["", "File \"a.py\"", "  File \"a.py\", line x, in f", "Error: File \"a.py\", line 1, in f"]
        {
            assert_eq!(parse_traceback_frame(text), None, "{text}");
        }
        assert_eq!(parse_profiler_frame("a (1).py(5): <module>"), Some(("a (1).py", 5, "<module>")));
        for text in ["nn.Module: Linear_0", "<built-in method randn of type object at 0x7f88>", "f(x): y"] {
            assert_eq!(parse_profiler_frame(text), None, "{text}");
        }
    }
}
