//! Settings from the environment, read once at the first driver call.
//!
//! `crates/simgpu/README.md` documents them. An invalid value prints one line and is ignored.

use simgpu_common::{parse_bool, parse_size, warn};

use crate::planned_failures::Failures;

/// Selects the copies that move bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyMode {
    /// Device memory reads as zeros: without kernels, copied bytes would pass for their results.
    Zero,
    /// Copies up to [`SMALL_COPY`] bytes move.
    Small,
    All,
}

/// What initializers of large tensors on the CPU do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Initializers {
    /// They write until the host's memory is short, and then nothing.
    Write,
    /// They write nothing, so that the tensors take no memory of the host.
    Skip,
}

/// Size limit of copies under `SIMGPU_COPY=small`, in bytes.
pub(crate) const SMALL_COPY: u64 = 64 << 10;

/// The settings of the simulation.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) memory: u64,
    pub(crate) devices: u32,
    pub(crate) compute: (u32, u32),
    /// `None`: as cards of this compute capability have them.
    pub(crate) multiprocessors: Option<u32>,
    pub(crate) name: String,
    pub(crate) copy: CopyMode,
    /// The largest tensor that is computed, in bytes; 0 computes none.
    pub(crate) values_bytes: u64,
    pub(crate) initializers: Initializers,
    /// Free memory of the host in bytes; `None`: as the system says.
    pub(crate) host_memory: Option<u64>,
    pub(crate) event_delay_us: u64,
    pub(crate) manual_events: bool,
    pub(crate) context_bytes: u64,
    pub(crate) log: Option<String>,
    pub(crate) trace: bool,
    pub(crate) alt_procaddr: bool,
    pub(crate) failures: Failures,
}

const MAX_DEVICES: u64 = 16;
const DEFAULT_MEMORY: u64 = 80 << 30;
const MEMORY_STEP: u64 = 2 << 20;

impl Config {
    /// Reads all settings through `var`, which returns `None` for an unset variable.
    pub(crate) fn read(var: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str, wanted: &str, default: u64, range: std::ops::RangeInclusive<u64>| {
            let Some(text) = var(name) else { return default };
            parse_size(&text).filter(|value| range.contains(value)).unwrap_or_else(|| {
                warn(name, &text, wanted, &default.to_string());
                default
            })
        };
        let switch = |name: &str| {
            var(name).is_some_and(|text| {
                parse_bool(&text).unwrap_or_else(|| {
                    warn(name, &text, "0 or 1", "0");
                    false
                })
            })
        };
        let compute = var("SIMGPU_CC").map_or((9, 0), |text| {
            parse_compute(&text).unwrap_or_else(|| {
                warn("SIMGPU_CC", &text, "a compute capability such as 9.0", "9.0");
                (9, 0)
            })
        });
        let memory = number(
            "SIMGPU_MEM",
            "a number of bytes from 2M to 2T, such as 80G",
            DEFAULT_MEMORY,
            MEMORY_STEP..=2 << 40,
        );
        Self {
            memory,
            devices: number("SIMGPU_DEVICES", "a number from 0 to 16", 1, 0..=MAX_DEVICES) as u32,
            compute,
            multiprocessors: Some(
                number("SIMGPU_MULTIPROCESSORS", "a number from 1 to 1024", 0, 1..=1024) as u32
            )
            .filter(|count| *count > 0),
            name: var("SIMGPU_NAME").unwrap_or_else(|| "Simulated GPU".to_owned()),
            copy: var("SIMGPU_COPY").map_or(CopyMode::Zero, |text| read_copy_mode(&text)),
            values_bytes: number(
                "SIMGPU_VALUES",
                "a number of bytes up to 16M, such as 64K",
                0,
                0..=16 << 20,
            ),
            initializers: if switch("SIMGPU_SKIP_INIT") { Initializers::Skip } else { Initializers::Write },
            host_memory: Some(number("SIMGPU_HOST_MEMORY", "a number of bytes", 0, 0..=1 << 50))
                .filter(|bytes| *bytes > 0),
            event_delay_us: number("SIMGPU_EVENT_DELAY_US", "a number of microseconds", 0, 0..=60_000_000),
            manual_events: switch("SIMGPU_MANUAL_EVENTS"),
            context_bytes: number("SIMGPU_CONTEXT_BYTES", "a number of bytes", 0, 0..=1 << 40),
            log: var("SIMGPU_LOG").filter(|path| !path.is_empty()),
            trace: switch("SIMGPU_TRACE"),
            alt_procaddr: switch("SIMGPU_ALT_PROCADDR"),
            failures: var("SIMGPU_FAIL").map_or_else(Failures::default, |text| read_failures(&text)),
        }
    }
}

fn read_copy_mode(text: &str) -> CopyMode {
    match text {
        "zero" => CopyMode::Zero,
        "small" => CopyMode::Small,
        "all" => CopyMode::All,
        _ => {
            warn("SIMGPU_COPY", text, "zero, small or all", "zero");
            CopyMode::Zero
        }
    }
}

fn read_failures(text: &str) -> Failures {
    Failures::parse(text).unwrap_or_else(|| {
        warn("SIMGPU_FAIL", text, "a list of api:n or api:n:code", "no failures");
        Failures::default()
    })
}

fn parse_compute(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
    let pair = (major.parse().ok()?, minor.parse().ok()?);
    (3..=20).contains(&pair.0).then_some(pair).filter(|pair| pair.1 <= 9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Config {
        Config::read(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned()))
    }

    #[test]
    fn default_is_one_80_gib_device() {
        let config = read(&[]);
        assert_eq!((config.memory, config.devices, config.compute), (80 << 30, 1, (9, 0)));
        assert_eq!((config.copy, config.log.as_deref(), config.trace), (CopyMode::Zero, None, false));
    }

    #[test]
    fn malformed_value_keeps_default() {
        let config = read(&[
            ("SIMGPU_MEM", "lots"),
            ("SIMGPU_CC", "x"),
            ("SIMGPU_COPY", "some"),
            ("SIMGPU_DEVICES", "99"),
        ]);
        assert_eq!((config.memory, config.devices, config.compute), (80 << 30, 1, (9, 0)));
        assert_eq!(config.copy, CopyMode::Zero);
    }

    #[test]
    fn every_setting_is_read() {
        let config = read(&[
            ("SIMGPU_MEM", "256M"),
            ("SIMGPU_CC", "8.0"),
            ("SIMGPU_COPY", "all"),
            ("SIMGPU_DEVICES", "2"),
            ("SIMGPU_MULTIPROCESSORS", "108"),
        ]);
        assert_eq!((config.memory, config.devices, config.compute), (256 << 20, 2, (8, 0)));
        assert_eq!(config.multiprocessors, Some(108));
        assert_eq!(config.copy, CopyMode::All);
    }
}
