//! Whose code a Python frame is.
//!
//! The *user line* of a stack is its innermost Python frame that is neither framework nor installed library:
//! * not under `site-packages` or `dist-packages`;
//! * not the standard library (`/lib/python3.X/`, `/lib64/python3.X/`, a `python3XX.zip`, `<frozen ...>`);
//! * not PyTorch run from its source folder (`.../torch/nn/...` and the like);
//! * not generated code (`<string>`, `<eval_with_key>`, ...), unless the stack has nothing better; what a person typed
//!   (`<stdin>`, a notebook cell) is the person's.
//!
//! A stack without such a frame answers with its innermost generated frame, then with its innermost frame of any origin.

/// Whose code a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The user's own.
    User,
    /// Made at run time from a string.
    Generated,
    /// Framework, installed library or standard library.
    Library,
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
pub fn origin_of(file: &str) -> Origin {
    if file.is_empty() {
        return Origin::Library;
    }
    if let Some(inner) = file.strip_prefix('<') {
        let typed = ["stdin>", "ipython-input", "input>", "console>", "doctest"];
        return match inner {
            _ if typed.iter().any(|name| inner.starts_with(name)) => Origin::User,
            _ if inner.starts_with("frozen ") => Origin::Library,
            _ => Origin::Generated,
        };
    }
    let is_library = file.contains("/site-packages/")
        || file.contains("/dist-packages/")
        || is_standard_library(file)
        || is_torch_source(file);
    if is_library { Origin::Library } else { Origin::User }
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
pub fn is_module_code(file: &str) -> bool {
    file.contains("/torch/nn/")
}

/// What an optimizer frame does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum OptimizerCall {
    /// `optimizer.step()`.
    Step,
    /// `optimizer.zero_grad()`.
    ZeroGrad,
}

/// Tells an optimizer's own frame: in `torch/optim/`, named `step` or `zero_grad`, or the wrapper that PyTorch puts around
/// the `step` of every optimizer class, wherever that class lives. Learning-rate schedulers are not optimizers.
pub fn optimizer_call(file: &str, function: &str) -> Option<OptimizerCall> {
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
            assert_eq!(origin_of(file), Origin::User, "{file}");
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
            assert_eq!(origin_of(file), Origin::Library, "{file}");
        }
        for file in ["<string>", "<eval_with_key>.7", "<__array_function__ internals>"] {
            assert_eq!(origin_of(file), Origin::Generated, "{file}");
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
