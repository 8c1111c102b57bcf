//! Classifies code as user code, generated code or library code by its file name.
//!
//! The *user line* of a stack is its innermost Python frame in user code. Paths given with
//! `--user-code` ([`UserCodePaths`]) are user code. Other user code is none of these:
//! * installed packages, below `site-packages` or `dist-packages`;
//! * the standard library (`/lib/python3.X/`, `/lib64/python3.X/`, `python3XX.zip`, `<frozen
//!   ...>`, on Windows `Lib` in the folder of an interpreter);
//! * PyTorch run from its source folder (`.../torch/nn/...` and the like);
//! * generated code (`<string>`, `<eval_with_key>`, ...). Typed code (`<stdin>`, notebook cells) is
//!   user code.
//!
//! A stack without user code uses its innermost generated frame instead, or else its innermost
//! frame. A stack without Python frames uses its innermost native frame in a user module
//! ([`is_user_module`]), or else the innermost one outside of [`FORWARDING_LIBRARIES`].
//!
//! A trace is read on other machines than it was recorded on, so the rules use only names in the
//! trace and open no file. Paths of Windows are judged with `/` for `\`.

use gpumemtrace_format::source_path::{file_name, with_slashes};

/// Classification of the code of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CodeOrigin {
    User,
    /// Compiled from a string at run time.
    Generated,
    /// Framework, installed package or standard library.
    Library,
}

/// Paths that count as user code. An absolute path covers everything below it. A relative path
/// (`site-packages/mylib`, `mylib`) covers every path that contains its components in sequence.
#[derive(Clone, Debug, Default)]
pub struct UserCodePaths(Vec<String>);

impl UserCodePaths {
    /// Parses the user's paths. `None` if one of them would cover everything (`""`, `.`, `/`).
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let clean = |path: &'a str| {
            let path = with_slashes(path);
            let root = if path.starts_with('/') { "/" } else { "" };
            let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
            (!parts.is_empty()).then(|| format!("{root}{}", parts.join("/")))
        };
        paths.into_iter().map(clean).collect::<Option<Vec<String>>>().map(Self)
    }

    fn contains(&self, file: &str) -> bool {
        let file = &*with_slashes(file);
        self.0.iter().any(|path| {
            file.match_indices(path.as_str()).any(|(at, _)| {
                let is_at_component = at == 0 || !path.starts_with('/') && file[..at].ends_with('/');
                let after = &file[at + path.len()..];
                is_at_component && (after.is_empty() || after.starts_with('/'))
            })
        })
    }

    /// The origin of the code in `file`.
    pub(crate) fn origin_of(&self, file: &str) -> CodeOrigin {
        if self.contains(file) { CodeOrigin::User } else { origin_of(file) }
    }

    /// True for a user module, which is an executable or shared library.
    pub(crate) fn is_user_module(&self, path: &str) -> bool {
        self.contains(path) || is_user_module(path)
    }
}

/// Libraries that only forward requests to the driver, by file name prefix. A call site in them
/// would say nothing about the program.
pub(crate) const FORWARDING_LIBRARIES: [&str; 4] = ["libgpumemtrace", "libcuda.so", "libcudart", "libc.so"];
/// Libraries of systems, compilers and vendors, by file name prefix: environments install copies of
/// them in arbitrary folders.
const SYSTEM_MODULES: &[&str] = &[
    "ld-linux",
    "linux-vdso",
    "libc.so",
    "libm.so",
    "libdl.so",
    "libpthread",
    "libstdc++",
    "libgcc_s",
    "libgomp",
    "libpython",
    "libcu",
    "libnv",
    "libnccl",
    "libamdhip64",
    "libhsa-runtime64",
    "libascendcl",
    "libgpumemtrace",
    "libtorch",
    "libc10",
];

/// True for a module that is not useful as a call site, such as PyTorch's allocator: every tensor
/// passes through it.
pub(crate) fn only_forwards_requests(path: &str) -> bool {
    let name = file_name(path);
    name.starts_with("libc10") || FORWARDING_LIBRARIES.iter().any(|prefix| name.starts_with(prefix))
}

/// Namespaces of C++ functions of PyTorch that every tensor passes through.
const FORWARDING_NAMESPACES: [&str; 6] = [
    "c10::",
    "at::",
    "c10_npu::",
    "at_npu::",
    "torch::autograd::VariableType",
    "torch::autograd::generated::details",
];

/// True for a C++ function that says nothing about a call site: it has no name, passes on a request
/// for memory, or walks the stack.
pub(crate) fn forwards_allocation(function: &str) -> bool {
    let name = function.replace("(anonymous namespace)::", "");
    let name = name.split(['(', '<']).next().unwrap_or(&name);
    let is_below = |namespace: &str| {
        name.match_indices(namespace).any(|(at, _)| at == 0 || name[..at].ends_with([' ', '*', '&']))
    };
    name.is_empty()
        || name == "??"
        || ["unwind", "CapturedTraceback", "gather_with_cpp"].iter().any(|part| name.contains(part))
        || FORWARDING_NAMESPACES.iter().any(|namespace| is_below(namespace))
}

/// True unless the module belongs to an installed package, the system or a vendor, or is the Python
/// interpreter.
pub(crate) fn is_user_module(path: &str) -> bool {
    let path = &*with_slashes(path);
    let name = file_name(path);
    let is_interpreter = name
        .strip_prefix("python")
        .is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 't' | 'd')));
    let is_system = ["/usr/lib", "/lib/", "/lib64/", "/usr/local/cuda", "/usr/bin/"]
        .iter()
        .any(|at| path.starts_with(at));
    let is_installed =
        path.contains("/site-packages/") || path.contains("/dist-packages/") || is_standard_library(path);
    !(name.is_empty()
        || is_interpreter
        || is_system
        || is_installed
        || SYSTEM_MODULES.iter().any(|prefix| name.starts_with(prefix)))
}

/// True for a source file of a compiler or system library. Code inlined from there is not user
/// code.
pub(crate) fn is_system_source(file: &str) -> bool {
    file.starts_with("/usr/include/")
        || file.starts_with("/usr/lib/")
        || file.contains("/include/c++/")
        || file.starts_with("/rustc/")
}

/// Paths below `torch/` that distinguish PyTorch's sources from a user's folder named `torch`.
const TORCH_SUBPATHS: &[&str] = &[
    "nn/",
    "optim/",
    "autograd/",
    "utils/",
    "cuda/",
    "amp/",
    "distributed/",
    "_dynamo/",
    "_inductor/",
    "_functorch/",
    "fx/",
    "_tensor.py",
    "functional.py",
    "_ops.py",
    "_compile.py",
    "profiler/",
    "jit/",
];

/// True for the functions that `gpumemtrace simulate` puts around those of PyTorch. They are
/// omitted from stacks.
pub(crate) fn is_simulation_wrapper(file: &str) -> bool {
    with_slashes(file).contains("/_gpumemtrace_simulation/")
}

/// The origin of the code in `file`, without regard to [`UserCodePaths`].
pub(crate) fn origin_of(file: &str) -> CodeOrigin {
    if file.is_empty() {
        return CodeOrigin::Library;
    }
    if let Some(inner) = file.strip_prefix('<') {
        let typed = ["stdin>", "ipython-input", "input>", "console>", "doctest"];
        return match inner {
            _ if typed.iter().any(|name| inner.starts_with(name)) => CodeOrigin::User,
            _ if inner.starts_with("frozen ") => CodeOrigin::Library,
            _ => CodeOrigin::Generated,
        };
    }
    let file = &*with_slashes(file);
    let is_library = file.contains("/site-packages/")
        || file.contains("/dist-packages/")
        || is_standard_library(file)
        || is_torch_source(file);
    if is_library { CodeOrigin::Library } else { CodeOrigin::User }
}

fn is_standard_library(file: &str) -> bool {
    is_windows_standard_library(file)
        || ["/lib/python", "/lib64/python"].iter().any(|folder| {
            file.match_indices(folder).any(|(at, _)| {
                let version = &file[at + folder.len()..];
                let end = version.find('/').unwrap_or(version.len());
                let version = &version[..end];
                version.starts_with(|c: char| c.is_ascii_digit())
                    && version.chars().all(|c| c.is_ascii_alphanumeric() || c == '.')
            })
        })
}

fn is_torch_source(file: &str) -> bool {
    file.match_indices("/torch/").any(|(at, folder)| {
        let rest = &file[at + folder.len()..];
        TORCH_SUBPATHS.iter().any(|subpath| rest.starts_with(subpath))
    })
}

/// True for `Lib` in the folder of an interpreter, on a drive of Windows, and for `python3XX.zip`.
fn is_windows_standard_library(file: &str) -> bool {
    let Some((drive, path)) = file.split_once(":/").filter(|(drive, _)| drive.len() == 1) else {
        return false;
    };
    let folders: Vec<String> = path.split('/').map(str::to_ascii_lowercase).collect();
    let folders: Vec<&str> = std::iter::once(drive).chain(folders.iter().map(String::as_str)).collect();
    folders.windows(2).any(|pair| match pair {
        [folder, "lib"] => is_interpreter_folder(folder),
        [_, archive] => archive.strip_suffix(".zip").is_some_and(|name| name.starts_with("python3")),
        _ => false,
    }) || folders.windows(3).any(|part| matches!(part, ["envs", _, "lib"]))
}

/// True for `python312`, `cpython-3.12.1-windows-x86_64-none`, `miniconda3`, and `3.11.5` of
/// pyenv.
fn is_interpreter_folder(name: &str) -> bool {
    let is_version = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '.');
    let after = name.rsplit_once("python").map(|(_, after)| after.trim_start_matches(['-', '.']));
    after.is_some_and(|after| after.starts_with("_embed") || after.starts_with(|c: char| c.is_ascii_digit()))
        || ["anaconda", "miniconda", "miniforge", "mambaforge"].iter().any(|conda| name.starts_with(conda))
        || name.starts_with("3.") && is_version(name)
}

/// True for the code of `torch.nn`, which a forward pass goes through.
pub(crate) fn is_module_code(file: &str) -> bool {
    with_slashes(file).contains("/torch/nn/")
}

/// The optimizer methods that delimit steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub(crate) enum OptimizerCall {
    Step,
    ZeroGrad,
}

/// Recognizes the frame of an optimizer: `step` or `zero_grad` in `torch/optim/`, or the wrapper
/// that PyTorch puts around the `step` of every optimizer class, wherever the class is defined.
/// `GradScaler.step` and `Module.zero_grad` stand for the optimizer's methods: the former calls
/// `step` unless gradients overflowed. Learning-rate schedulers are not optimizers.
pub(crate) fn optimizer_call(file: &str, function: &str) -> Option<OptimizerCall> {
    let file = &*with_slashes(file);
    if file.ends_with("amp/grad_scaler.py") && file.contains("torch/") {
        return (function.rsplit('.').next() == Some("step")).then_some(OptimizerCall::Step);
    }
    if file.ends_with("torch/nn/modules/module.py") {
        return (function.rsplit('.').next() == Some("zero_grad")).then_some(OptimizerCall::ZeroGrad);
    }
    let (_, within) = file.rsplit_once("torch/optim/")?;
    if within.starts_with("lr_scheduler") || within.starts_with("swa_utils") {
        return None;
    }
    let name = function.rsplit('.').next().unwrap_or(function);
    match name {
        "step" => Some(OptimizerCall::Step),
        "zero_grad" => Some(OptimizerCall::ZeroGrad),
        "wrapper" if within.starts_with("optimizer.py") => Some(OptimizerCall::Step),
        _ => None,
    }
}

/// True for the Python functions that run autograd's engine.
pub(crate) fn is_backward_call(file: &str, function: &str) -> bool {
    with_slashes(file).ends_with("torch/autograd/__init__.py") && matches!(function, "backward" | "grad")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_classified_as_user_library_or_generated() {
        for file in [
            "/home/me/train.py",
            "train.py",
            "/srv/torch/train.py",
            "<stdin>",
            "<ipython-input-3-abc>",
            "/lib/pythonic/x.py",
            r"D:\proj\train.py",
            r"src\train.py",
            r"D:\proj\lib\model.py",
            r"C:\Users\me\torch\train.py",
        ] {
            assert_eq!(origin_of(file), CodeOrigin::User, "{file}");
        }
        for file in [
            "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py",
            "/usr/lib/python3/dist-packages/six.py",
            "/usr/lib/python3.12/threading.py",
            "/opt/py/lib64/python3.13t/queue.py",
            "/src/pytorch/torch/nn/modules/module.py",
            "<frozen importlib._bootstrap>",
            "",
            r"C:\Users\me\env\Lib\site-packages\torch\nn\modules\module.py",
            r"\\host\src\pytorch\torch\nn\modules\module.py",
            r"C:\Users\me\AppData\Local\Programs\Python\Python312\Lib\threading.py",
            r"C:\Users\me\miniconda3\lib\contextlib.py",
            r"C:\Users\me\miniconda3\envs\sd\lib\contextlib.py",
            r"C:\Users\me\.pyenv\pyenv-win\versions\3.11.5\Lib\runpy.py",
            r"D:\ComfyUI\python_embeded\Lib\runpy.py",
            r"D:\ComfyUI\python_embeded\python312.zip\runpy.py",
        ] {
            assert_eq!(origin_of(file), CodeOrigin::Library, "{file}");
        }
        for file in ["<string>", "<eval_with_key>.7", "<__array_function__ internals>"] {
            assert_eq!(origin_of(file), CodeOrigin::Generated, "{file}");
        }
    }

    #[test]
    fn functions_that_forward_allocations_are_no_call_sites() {
        for function in [
            "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(signed char, unsigned long)",
            "at::TensorBase at::detail::_empty_generic<long>(c10::ArrayRef<long>)",
            "torch::CapturedTraceback::gather(bool, bool, bool)",
            "torch::unwind::unwind()",
            "torch::cuda::(anonymous namespace)::gather_with_cpp()",
            "at::(anonymous namespace)::wrapper_CUDA_mm(at::Tensor const&)",
            "torch::autograd::VariableType::(anonymous namespace)::mm(c10::DispatchKeySet)",
            "??",
        ] {
            assert!(forwards_allocation(function), "{function}");
        }
        for function in [
            "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)",
            "main",
            "format::x()",
        ] {
            assert!(!forwards_allocation(function), "{function}");
        }
    }

    #[test]
    fn user_code_paths_override_all_rules_and_match_whole_components() {
        let paths =
            UserCodePaths::new(["/venv/lib/python3.12/site-packages/mine/", "./site-packages/ours"]).unwrap();
        for file in [
            "/venv/lib/python3.12/site-packages/mine/model.py",
            "/other/site-packages/ours/a.py",
            "/home/me/train.py",
        ] {
            assert_eq!(paths.origin_of(file), CodeOrigin::User, "{file}");
        }
        for file in [
            "/venv/lib/python3.12/site-packages/mine2/model.py",
            "/x/venv/lib/python3.12/site-packages/mine/model.py",
            "/other/my-site-packages/site-packages/oursish/a.py",
            "<frozen importlib._bootstrap>",
        ] {
            assert_eq!(paths.origin_of(file), CodeOrigin::Library, "{file}");
        }
        assert!(
            paths.is_user_module("/a/site-packages/ours/ext.so")
                && !paths.is_user_module("/a/site-packages/b/ext.so")
        );
        let windows = UserCodePaths::new([r"C:\env\Lib\site-packages\mine", r"site-packages\ours"]).unwrap();
        for (file, origin) in [
            (r"C:\env\Lib\site-packages\mine\a.py", CodeOrigin::User),
            (r"D:\x\site-packages\ours\a.py", CodeOrigin::User),
            (r"C:\env\Lib\site-packages\mine2\a.py", CodeOrigin::Library),
        ] {
            assert_eq!(windows.origin_of(file), origin, "{file}");
        }
        for everything in ["", ".", "/", "./"] {
            assert!(UserCodePaths::new([everything]).is_none(), "{everything:?}");
        }
    }

    #[test]
    fn modules_are_classified_as_user_or_installed() {
        for module in ["/home/me/a.out", "/srv/app/libengine.so", "/home/me/pythonish", "/work/runtime12.so"]
        {
            assert!(is_user_module(module), "{module}");
        }
        for module in [
            "",
            "linux-vdso.so.1",
            "/usr/lib/x86_64-linux-gnu/libssl.so.3",
            "/home/me/conda/lib/libstdc++.so.6",
            "/home/me/conda/lib/libpython3.12.so.1.0",
            "/home/me/conda/bin/python3.12",
            "/v/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so",
            "/home/me/pytorch/torch/lib/libc10_cuda.so",
            "/v/lib/python3.12/lib-dynload/_ctypes.so",
            "/work/libcuda.so.1",
        ] {
            assert!(!is_user_module(module), "{module}");
        }
    }

    #[test]
    fn optimizer_frames_are_recognized_and_schedulers_are_not() {
        let optim = "/x/site-packages/torch/optim/";
        assert_eq!(optimizer_call(&format!("{optim}adam.py"), "Adam.step"), Some(OptimizerCall::Step));
        assert_eq!(
            optimizer_call(&format!("{optim}optimizer.py"), "Optimizer.zero_grad"),
            Some(OptimizerCall::ZeroGrad)
        );
        assert_eq!(
            optimizer_call(&format!("{optim}optimizer.py"), "Optimizer.profile_hook_step.<locals>.wrapper"),
            Some(OptimizerCall::Step)
        );
        assert_eq!(optimizer_call(&format!("{optim}lr_scheduler.py"), "StepLR.step"), None);
        let windows = r"C:\x\site-packages\torch\optim\adam.py";
        assert_eq!(optimizer_call(windows, "step"), Some(OptimizerCall::Step));
        let scaler = "/x/site-packages/torch/amp/grad_scaler.py";
        assert_eq!(optimizer_call(scaler, "GradScaler.step"), Some(OptimizerCall::Step));
        assert_eq!(optimizer_call(scaler, "GradScaler.unscale_"), None);
        let module = "/x/site-packages/torch/nn/modules/module.py";
        assert_eq!(optimizer_call(module, "Module.zero_grad"), Some(OptimizerCall::ZeroGrad));
        assert_eq!(optimizer_call(module, "Module._call_impl"), None);
        assert_eq!(optimizer_call("/home/me/optim.py", "Adam.step"), None);
    }
}
