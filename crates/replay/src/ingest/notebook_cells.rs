//! File names of notebook cells.
//!
//! A cell that runs again is the same code. [IPython] names it after its execution count and a hash
//! of its source: `<ipython-input-12-5b1c0f2e9a7d>`. Tracebacks of Colab have
//! `/tmp/ipython-input-12-3419219133.py`. Without the count, all runs of a cell have one name.
//! [ipykernel] names cells after the hash alone: `/tmp/ipykernel_71/3419219133.py`.
//!
//! [IPython]: https://github.com/ipython/ipython/blob/06edb0ca99fd9704120ac40373d75a59a9e45ce3/IPython/core/compilerop.py
//! [ipykernel]: https://github.com/ipython/ipykernel/blob/058bcea54dcac4681a7ebd4edda68c29674bf292/ipykernel/compiler.py

const CELL: &str = "ipython-input-";

/// The name of a cell's file without its execution count; `None` for other files.
pub(crate) fn without_execution_count(file: &str) -> Option<String> {
    let name = file.rsplit(['/', '\\', '<']).next()?;
    let (count, hash) = name.strip_prefix(CELL)?.split_once('-')?;
    if count.is_empty() || !count.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let folder = &file[..file.len() - name.len()];
    Some(format!("{folder}{CELL}{hash}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_cell_have_one_name() {
        for (file, name) in [
            ("<ipython-input-12-5b1c0f2e9a7d>", Some("<ipython-input-5b1c0f2e9a7d>")),
            ("<ipython-input-3-5b1c0f2e9a7d>", Some("<ipython-input-5b1c0f2e9a7d>")),
            ("/tmp/ipython-input-2-3419219133.py", Some("/tmp/ipython-input-3419219133.py")),
            ("/tmp/ipython-input-3419219133.py", None),
            ("<ipython-input-3>", None),
            ("/tmp/ipykernel_71/3419219133.py", None),
            ("ipython-input-notes-of-mine.py", None),
            ("train.py", None),
        ] {
            assert_eq!(without_execution_count(file).as_deref(), name, "{file}");
        }
    }
}
