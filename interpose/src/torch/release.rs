//! From a PyTorch version to the release that the layout tables list.

/// The release of a released version: `2.15` for `2.15.0` and `2.15.0+cu132`.
///
/// `None` for any other version, such as `2.15.0a0+git`: its structs may differ.
pub(super) fn release_of(version: &str) -> Option<&str> {
    let public = version.split('+').next()?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (release, patch) = public.rsplit_once('.')?;
    let (major, minor) = release.split_once('.')?;
    [major, minor, patch].into_iter().all(is_number).then_some(release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_released_versions_have_a_release() {
        for (version, release) in [("2.15.0", "2.15"), ("2.1.2+cu121", "2.1"), ("2.10.0+cpu", "2.10")] {
            assert_eq!(release_of(version), Some(release));
        }
        for version in ["", "2", "2.15", "2.15.0a0+git1234", "2.15.0.1", "2..0", "2.15.0rc1", "nightly"] {
            assert_eq!(release_of(version), None, "{version}");
        }
    }
}
