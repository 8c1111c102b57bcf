//! Whose code a frame is.
//!
//! The *user line* of a stack is its innermost Python frame that is neither framework nor installed library:
//! * what the user calls their own (`--own PATH`, [`UserCodePaths`]) is theirs, wherever it lies; else
//! * not under `site-packages` or `dist-packages`;
//! * not the standard library (`/lib/python3.X/`, `/lib64/python3.X/`, a `python3XX.zip`, `<frozen ...>`);
//! * not PyTorch run from its source folder (`.../torch/nn/...` and the like);
//! * not generated code (`<string>`, `<eval_with_key>`, ...), unless the stack has nothing better; what a person typed
//!   (`<stdin>`, a notebook cell) is the person's.
//!
//! A stack without such a frame answers with its innermost generated frame, then with its innermost frame of any origin. A stack
//! without Python frames answers with its innermost native frame in a module of the user's ([`is_own_module`]), then with the
//! innermost one that is no plumbing (CUDA's runtime and driver, PyTorch's allocator, ourselves).
//!
//! Constraint: a trace is read on other machines than the one it was made on. Consequence: rules look at the names in the trace
//! and at no file.

/// Whose code a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CodeOrigin {
    /// The user's own.
    User,
    /// Made at run time from a string.
    Generated,
    /// Framework, installed library or standard library.
    Library,
}

/// Paths that the user calls their own: an absolute one with everything below it; a relative one wherever its components stand
/// in a row (`site-packages/mylib`, `mylib`).
#[derive(Clone, Debug, Default)]
pub struct UserCodePaths(Vec<String>);

impl UserCodePaths {
    /// From what a user typed. `None` if a path says nothing (`""`, `.`, `/`).
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let clean = |path: &'a str| {
            let root = if path.starts_with('/') { "/" } else { "" };
            let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
            (!parts.is_empty()).then(|| format!("{root}{}", parts.join("/")))
        };
        paths.into_iter().map(clean).collect::<Option<Vec<String>>>().map(Self)
    }

    fn has(&self, file: &str) -> bool {
        self.0.iter().any(|own| {
            file.match_indices(own.as_str()).any(|(at, _)| {
                let begins = at == 0 || !own.starts_with('/') && file[..at].ends_with('/');
                let after = &file[at + own.len()..];
                begins && (after.is_empty() || after.starts_with('/'))
            })
        })
    }

    /// Says whose code the file holds.
    pub(crate) fn origin_of(&self, file: &str) -> CodeOrigin {
        if self.has(file) { CodeOrigin::User } else { origin_of(file) }
    }

    /// True for a module (executable or shared library) of the user's.
    pub(crate) fn is_own_module(&self, path: &str) -> bool {
        self.has(path) || is_own_module(path)
    }
}

/// Libraries that pass requests on to the driver: never whose line it is.
pub(crate) const PLUMBING: [&str; 4] = ["libgpumemtrace", "libcuda.so", "libcudart", "libc.so"];
/// Libraries of systems, compilers and vendors, by how their file names begin: environments keep copies of them anywhere.
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
    "libgpumemtrace",
    "libtorch",
    "libc10",
];

/// True unless the module is an installed package's, the system's or a vendor's, or the Python interpreter.
pub(crate) fn is_own_module(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
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

/// True for a source file that a compiler brought along: what is inlined from there is nobody's own.
pub(crate) fn is_system_source(file: &str) -> bool {
    file.starts_with("/usr/include/")
        || file.starts_with("/usr/lib/")
        || file.contains("/include/c++/")
        || file.starts_with("/rustc/")
}

/// Folders below `torch/` that tell PyTorch's own sources from a user's folder that happens to be named torch.
const TORCH_PARTS: &[&str] = &[
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

/// Says whose code the file holds.
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
    let is_library = file.contains("/site-packages/")
        || file.contains("/dist-packages/")
        || is_standard_library(file)
        || is_torch_source(file);
    if is_library { CodeOrigin::Library } else { CodeOrigin::User }
}

fn is_standard_library(file: &str) -> bool {
    ["/lib/python", "/lib64/python"].iter().any(|folder| {
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
        TORCH_PARTS.iter().any(|part| rest.starts_with(part))
    })
}

/// True for PyTorch's modules and the functions they call: what a forward pass goes through.
pub(crate) fn is_module_code(file: &str) -> bool {
    file.contains("/torch/nn/")
}

/// What an optimizer frame does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub(crate) enum OptimizerCall {
    /// `optimizer.step()`.
    Step,
    /// `optimizer.zero_grad()`.
    ZeroGrad,
}

/// Tells an optimizer's own frame: in `torch/optim/`, named `step` or `zero_grad`, or the wrapper that PyTorch puts around
/// the `step` of every optimizer class, wherever that class lives. Learning-rate schedulers are not optimizers.
pub(crate) fn optimizer_call(file: &str, function: &str) -> Option<OptimizerCall> {
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

/// True for a function that runs the engine.
pub(crate) fn is_backward_call(file: &str, function: &str) -> bool {
    file.ends_with("torch/autograd/__init__.py") && matches!(function, "backward" | "grad")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_files_are_told_from_what_is_installed() {
        for file in [
            "/home/me/train.py",
            "train.py",
            "/srv/torch/train.py",
            "<stdin>",
            "<ipython-input-3-abc>",
            "/lib/pythonic/x.py",
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
        ] {
            assert_eq!(origin_of(file), CodeOrigin::Library, "{file}");
        }
        for file in ["<string>", "<eval_with_key>.7", "<__array_function__ internals>"] {
            assert_eq!(origin_of(file), CodeOrigin::Generated, "{file}");
        }
    }

    #[test]
    fn own_paths_win_over_every_rule_and_match_whole_components() {
        let own =
            UserCodePaths::new(["/venv/lib/python3.12/site-packages/mine/", "./site-packages/ours"]).unwrap();
        for file in [
            "/venv/lib/python3.12/site-packages/mine/model.py",
            "/other/site-packages/ours/a.py",
            "/home/me/train.py",
        ] {
            assert_eq!(own.origin_of(file), CodeOrigin::User, "{file}");
        }
        for file in [
            "/venv/lib/python3.12/site-packages/mine2/model.py",
            "/x/venv/lib/python3.12/site-packages/mine/model.py",
            "/other/my-site-packages/site-packages/oursish/a.py",
            "<frozen importlib._bootstrap>",
        ] {
            assert_eq!(own.origin_of(file), CodeOrigin::Library, "{file}");
        }
        assert!(
            own.is_own_module("/a/site-packages/ours/ext.so")
                && !own.is_own_module("/a/site-packages/b/ext.so")
        );
        for nothing in ["", ".", "/", "./"] {
            assert!(UserCodePaths::new([nothing]).is_none(), "{nothing:?}");
        }
    }

    #[test]
    fn the_users_modules_are_told_from_what_is_installed() {
        for module in ["/home/me/a.out", "/srv/app/libengine.so", "/home/me/pythonish", "/work/runtime12.so"]
        {
            assert!(is_own_module(module), "{module}");
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
            assert!(!is_own_module(module), "{module}");
        }
    }

    #[test]
    fn optimizers_are_told_from_schedulers() {
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
        assert_eq!(optimizer_call("/home/me/optim.py", "Adam.step"), None);
    }
}
