//! The host, the user and the folders of a run.

use gpumemtrace_format::Meta;
use gpumemtrace_format::MetaValue;

/// The host, the user and the folders of a run, as the trace states them. Not part of the JSON
/// report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceOrigin {
    /// The name of the host.
    pub host: Option<String>,
    /// The effective user id of the traced program.
    pub user_id: Option<u64>,
    /// Absolute paths of the folders that the program ran in: its working directory when the
    /// recording began, that of the shell that started it, and the folder of its script.
    pub folders: Vec<String>,
}

impl TraceOrigin {
    pub(crate) fn of(meta: &Meta) -> Self {
        let list = |name: &str| match meta.get(name) {
            Some(MetaValue::List(list)) => list.as_slice(),
            _ => &[],
        };
        let mut folders = list("folders").to_vec();
        let script = list("command").iter().skip(1).find(|argument| argument.as_bytes().ends_with(b".py"));
        if let Some((folder, _)) = script.and_then(|script| script.rsplit_once('/')) {
            let started_in = std::mem::take(&mut folders);
            if folder.starts_with('/') {
                folders.push(folder.to_owned());
            } else {
                folders.extend(started_in.iter().map(|parent| format!("{parent}/{folder}")));
            }
            folders.extend(started_in);
        }
        folders.retain(|folder| folder.starts_with('/'));
        Self { host: meta.text("host").map(str::to_owned), user_id: meta.number("user_id"), folders }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_of_the_script_is_a_folder_of_the_run() {
        let origin = |command: &[&str]| {
            let mut meta = Meta::default();
            meta.set_list("folders", vec!["/work".to_owned(), "odd".to_owned()]);
            meta.set_list("command", command.iter().map(|part| (*part).to_owned()).collect());
            TraceOrigin::of(&meta).folders
        };
        assert_eq!(origin(&["python", "train.py"]), ["/work"]);
        assert_eq!(origin(&["python", "-u", "/srv/app/train.py", "/x/y.py"]), ["/srv/app", "/work"]);
        assert_eq!(origin(&["python", "../app/train.py"]), ["/work/../app", "/work"]);
        assert_eq!(origin(&["python", "-m", "pkg"]), ["/work"]);
    }
}
