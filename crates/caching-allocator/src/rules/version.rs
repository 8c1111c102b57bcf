//! Releases of PyTorch that the rules are known for.

use std::fmt;

/// The oldest and the newest minor version of PyTorch 2 with known rules.
const KNOWN_MINORS: (u32, u32) = (1, 15);

/// A release of PyTorch with known allocator rules, such as 2.9. Patch releases share their rules.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TorchVersion {
    minor: u32,
}

impl TorchVersion {
    /// The newest release with known rules.
    pub const LATEST: Self = Self { minor: KNOWN_MINORS.1 };

    /// PyTorch 2.`minor`; `None` if its rules are not known.
    pub const fn new(minor: u32) -> Option<Self> {
        if minor < KNOWN_MINORS.0 || minor > KNOWN_MINORS.1 { None } else { Some(Self { minor }) }
    }

    /// Reads `torch.__version__`, such as `2.9.1+cu128`. A version without known rules is an error
    /// that has the nearest known one.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        let mut numbers = text.trim().split(['.', '+', '-']).map_while(|part| {
            let digits = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse::<u32>().ok()
        });
        let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
            return Err(VersionError { text: text.to_owned(), nearest: None });
        };
        let nearest = match major {
            ..2 => KNOWN_MINORS.0,
            2 => minor.clamp(KNOWN_MINORS.0, KNOWN_MINORS.1),
            3.. => KNOWN_MINORS.1,
        };
        if (major, minor) == (2, nearest) {
            return Ok(Self { minor });
        }
        Err(VersionError { text: text.to_owned(), nearest: Some(Self { minor: nearest }) })
    }

    /// All releases with known rules, the oldest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (KNOWN_MINORS.0..=KNOWN_MINORS.1).map(|minor| Self { minor })
    }

    /// The second number of the version.
    pub fn minor(self) -> u32 {
        self.minor
    }
}

impl fmt::Display for TorchVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "2.{}", self.minor)
    }
}

/// A version of PyTorch without known rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionError {
    /// The text that was parsed.
    pub text: String,
    /// The nearest version with known rules; `None` if the text is not a version.
    pub nearest: Option<TorchVersion>,
}

impl fmt::Display for VersionError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nearest {
            None => write!(formatter, "{:?} is not a version of PyTorch", self.text),
            Some(nearest) => write!(
                formatter,
                "the allocator rules of torch {} are unknown; the nearest known version is {nearest}",
                self.text
            ),
        }
    }
}

impl std::error::Error for VersionError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_versions_name_the_nearest_known_one() {
        let nearest = |text| match TorchVersion::parse(text) {
            Ok(version) => (true, version.to_string()),
            Err(error) => (false, error.nearest.map_or(String::new(), |nearest| nearest.to_string())),
        };
        for (text, known, expected) in [
            ("2.9.1+cu128", true, "2.9"),
            ("2.15.0", true, "2.15"),
            ("2.12.0a0+git1234", true, "2.12"),
            ("2.1", true, "2.1"),
            ("2.0.1", false, "2.1"),
            ("1.13.1", false, "2.1"),
            ("2.16.0", false, "2.15"),
            ("3.0", false, "2.15"),
            ("nightly", false, ""),
            ("", false, ""),
        ] {
            assert_eq!(nearest(text), (known, expected.to_owned()), "{text}");
        }
        let error = TorchVersion::parse("2.16.0").expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "the allocator rules of torch 2.16.0 are unknown; the nearest known version is 2.15"
        );
    }
}
