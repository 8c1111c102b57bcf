//! The peak of a device's driver memory, over the whole run and after its first step.

/// The highest driver memory of one device, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DriverPeak {
    bytes: u64,
    /// Since the first step ended; `None` before.
    in_steps: Option<u64>,
}

impl DriverPeak {
    /// Takes the present bytes into the peak.
    pub(crate) fn observe(&mut self, bytes: u64) {
        self.bytes = self.bytes.max(bytes);
        self.in_steps = self.in_steps.map(|peak| peak.max(bytes));
    }

    /// Ends a step with the present bytes.
    pub(super) fn end_step(&mut self, bytes: u64) {
        self.in_steps.get_or_insert(bytes);
    }

    /// Forgets all but the present bytes.
    pub(super) fn restart(&mut self, bytes: u64) {
        *self = Self { bytes, in_steps: None };
    }

    /// The highest bytes of the run.
    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// The highest bytes after the first step, or of the run without steps. Memory that a program
    /// takes and frees once at its start does not come again.
    pub(crate) fn recurring_bytes(self) -> u64 {
        self.in_steps.unwrap_or(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_before_the_first_step_end_does_not_recur() {
        let mut peak = DriverPeak::default();
        peak.observe(90);
        peak.observe(10);
        assert_eq!((peak.bytes(), peak.recurring_bytes()), (90, 90));
        peak.end_step(10);
        peak.observe(30);
        peak.end_step(20);
        assert_eq!((peak.bytes(), peak.recurring_bytes()), (90, 30));
        peak.restart(5);
        assert_eq!((peak.bytes(), peak.recurring_bytes()), (5, 5));
    }
}
