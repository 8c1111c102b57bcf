//! The card of a simulation, and what the simulated driver is told about it.

use std::ffi::OsString;

use gpumemtrace_format::size_arg;
use gpumemtrace_whatif::KnownCard;

/// What a context takes of the card: measured on an H200 with driver 580, for torch 2.11 with CUDA
/// 13.0 (docs/gpu-validation.md). Other cards and drivers differ.
const CONTEXT_BYTES: u64 = 552_402_944;
/// What a cuBLAS handle allocates since compute capability 9.0: measured in the same runs. Older
/// cards were not measured.
const CUBLAS_HANDLE_BYTES: u64 = (64 << 20) + (128 << 10) + 1024;
const HOPPER: (u32, u32) = (9, 0);
/// Cards below this have no room for a context.
const SMALLEST_BYTES: u64 = 1 << 30;

/// A card to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedCard {
    pub(crate) name: String,
    pub(crate) total_bytes: u64,
    compute_capability: (u32, u32),
    multiprocessors: u32,
}

impl SimulatedCard {
    /// A known name, or a size. A card of a size is otherwise an H100.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(card) = KnownCard::find(text) {
            return Ok(Self::of(&card, format!("NVIDIA {}", card.name), card.total_bytes));
        }
        let h100 = KnownCard::find("h100").ok_or("the table of cards lacks the H100")?;
        match size_arg::parse_bytes(text) {
            Some(bytes) if bytes >= SMALLEST_BYTES => {
                Ok(Self::of(&h100, "a card like the H100".to_owned(), bytes))
            }
            Some(_) => Err("the smallest card has 1GiB".to_owned()),
            None => {
                let names: Vec<&str> = KnownCard::names().collect();
                Err(format!("expected a size such as 24GiB, or one of {}", names.join(", ")))
            }
        }
    }

    fn of(card: &KnownCard, name: String, total_bytes: u64) -> Self {
        let KnownCard { compute_capability, multiprocessors, .. } = *card;
        Self { name, total_bytes, compute_capability, multiprocessors }
    }

    /// Variables of the simulated driver (simgpu/README.md).
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let (major, minor) = self.compute_capability;
        let mut variables = vec![
            // Reports of the trace show this name.
            ("SIMGPU_NAME", format!("{}, simulated", self.name).into()),
            ("SIMGPU_MEM", self.total_bytes.to_string().into()),
            ("SIMGPU_CC", format!("{major}.{minor}").into()),
            ("SIMGPU_MULTIPROCESSORS", self.multiprocessors.to_string().into()),
            ("SIMGPU_CONTEXT_BYTES", CONTEXT_BYTES.to_string().into()),
        ];
        if self.compute_capability >= HOPPER {
            variables.push(("SIMGPU_CUBLAS_BYTES", CUBLAS_HANDLE_BYTES.to_string().into()));
        }
        variables
    }
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
        assert!(SimulatedCard::parse("512MiB").unwrap_err().contains("1GiB"));
        assert!(SimulatedCard::parse("H1000").unwrap_err().contains("h100"));
    }
}
