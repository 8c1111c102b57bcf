//! The card of a simulation, and what the simulated driver is told about it.

use std::ffi::OsString;

use gpumemtrace_format::size_arg;
use gpumemtrace_whatif::KnownCard;

use crate::terminal::units::format_bytes;

/// What a context takes of cards where it was not measured: as on an H200 (`KnownCard`).
const CONTEXT_BYTES: u64 = 552_402_944;
/// What a cuBLAS handle allocates since compute capability 9.0: measured in the same runs. Older
/// cards were not measured.
const CUBLAS_HANDLE_BYTES: u64 = (64 << 20) + (128 << 10) + 1024;
const HOPPER: (u32, u32) = (9, 0);
/// The card of runs without `--card`, and what a card given as a size is otherwise like.
const ASSUMED: &str = "h100";

/// A card to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedCard {
    pub(crate) name: String,
    pub(crate) total_bytes: u64,
    compute_capability: (u32, u32),
    multiprocessors: u32,
    context_bytes: u64,
    is_of_size: bool,
}

impl SimulatedCard {
    /// A known name, or a size. A card given as a size is otherwise like an H100.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(card) = KnownCard::find(text) {
            return Ok(Self::of(&card, format!("NVIDIA {}", card.name), card.total_bytes));
        }
        let h100 = KnownCard::find(ASSUMED).ok_or("the table of cards lacks the H100")?;
        let Some(bytes) = size_arg::parse_bytes(text) else {
            let names: Vec<&str> = KnownCard::names().collect();
            return Err(format!("expected a size such as 24GiB, or one of {}", names.join(", ")));
        };
        let card = Self::like(&h100, bytes);
        if bytes <= card.context_bytes {
            let context = format_bytes(card.context_bytes);
            return Err(format!("a CUDA context alone takes {context}, so a card needs more"));
        }
        Ok(card)
    }

    /// The card of runs that name none.
    pub(crate) fn assumed() -> Result<Self, String> {
        Self::parse(ASSUMED)
    }

    /// A card given as a size, with this compute capability. It is otherwise like the known card of
    /// that capability with the closest size, or like an H100 if there is none.
    ///
    /// # Errors
    ///
    /// A card with a name has its own.
    pub(crate) fn with_capability(self, compute_capability: (u32, u32)) -> Result<Self, String> {
        if !self.is_of_size {
            return Err("it needs a --card given as a size, such as 24GiB".to_owned());
        }
        if let Some(card) = KnownCard::closest(compute_capability, self.total_bytes) {
            return Ok(Self::like(&card, self.total_bytes));
        }
        let (major, minor) = compute_capability;
        let name = format!("a card of compute capability {major}.{minor}");
        Ok(Self { name, compute_capability, ..self })
    }

    fn like(card: &KnownCard, total_bytes: u64) -> Self {
        let card = Self::of(card, format!("a card like the {}", card.name), total_bytes);
        Self { is_of_size: true, ..card }
    }

    fn of(card: &KnownCard, name: String, total_bytes: u64) -> Self {
        let KnownCard { compute_capability, multiprocessors, context_bytes, .. } = *card;
        let context_bytes = context_bytes.unwrap_or(CONTEXT_BYTES);
        Self { name, total_bytes, compute_capability, multiprocessors, context_bytes, is_of_size: false }
    }

    /// Variables of the simulated driver (crates/simgpu/README.md).
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let (major, minor) = self.compute_capability;
        let mut variables = vec![
            // Reports of the trace show this name.
            ("SIMGPU_NAME", format!("{}, simulated", self.name).into()),
            ("SIMGPU_MEM", self.total_bytes.to_string().into()),
            ("SIMGPU_CC", format!("{major}.{minor}").into()),
            ("SIMGPU_MULTIPROCESSORS", self.multiprocessors.to_string().into()),
            ("SIMGPU_CONTEXT_BYTES", self.context_bytes.to_string().into()),
        ];
        if self.compute_capability >= HOPPER {
            variables.push(("SIMGPU_CUBLAS_BYTES", CUBLAS_HANDLE_BYTES.to_string().into()));
        }
        variables
    }
}

/// Parses a compute capability such as `8.6`.
pub(crate) fn parse_capability(text: &str) -> Result<(u32, u32), String> {
    let parts =
        text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    // The range of the simulated driver.
    parts
        .filter(|(major, minor)| (3..=20).contains(major) && *minor <= 9)
        .ok_or_else(|| "expected a compute capability such as 8.6".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_cards() {
        let a100 = SimulatedCard::parse("A100").unwrap();
        assert_eq!(
            (a100.total_bytes, a100.compute_capability, a100.multiprocessors),
            (84_974_239_744, (8, 0), 108)
        );
        assert!(a100.variables().contains(&("SIMGPU_CC", "8.0".into())));
        assert!(!a100.variables().iter().any(|(name, _)| *name == "SIMGPU_CUBLAS_BYTES"));
        let sized = SimulatedCard::parse("24GiB").unwrap();
        assert_eq!((sized.total_bytes, sized.compute_capability), (24 << 30, (9, 0)));
        let fraction = SimulatedCard::parse("94.97GiB").unwrap();
        assert_eq!(fraction.total_bytes, 101_973_261_025);
        let small = SimulatedCard::parse("600MiB").unwrap();
        assert_eq!(small.total_bytes, 600 << 20);
        for (text, has_room) in [("552402945", true), ("552402944", false), ("512MiB", false)] {
            assert_eq!(SimulatedCard::parse(text).is_ok(), has_room, "{text}");
        }
        let refusal = SimulatedCard::parse("512MiB").unwrap_err();
        assert_eq!(refusal, "a CUDA context alone takes 526.81 MiB, so a card needs more");
        assert!(SimulatedCard::parse("H1000").unwrap_err().contains("h100"));
    }

    #[test]
    fn context_of_a_measured_card_serves_the_others() {
        let context = |card| SimulatedCard::parse(card).unwrap().context_bytes;
        assert_eq!((context("h200"), context("t4")), (552_402_944, CONTEXT_BYTES));
    }

    #[test]
    fn capability_belongs_to_cards_of_a_size() {
        let sized = |capability| SimulatedCard::parse("24GiB").unwrap().with_capability(capability).unwrap();
        let ada = sized((8, 9));
        assert_eq!(
            (ada.name.as_str(), ada.total_bytes, ada.multiprocessors),
            ("a card like the RTX 4090", 24 << 30, 128)
        );
        let orin = sized((8, 7));
        assert_eq!(
            (orin.name.as_str(), orin.compute_capability),
            ("a card of compute capability 8.7", (8, 7))
        );
        assert!(SimulatedCard::parse("A100").unwrap().with_capability((8, 6)).is_err());
        assert_eq!(parse_capability("12.0"), Ok((12, 0)));
        for text in ["9", "9.x", "90", "2.0", "8.10", ""] {
            assert!(parse_capability(text).is_err(), "{text}");
        }
    }
}
