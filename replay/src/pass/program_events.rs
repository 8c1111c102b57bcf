//! Applies events in which the program reports about itself: holders of blocks, PyTorch's counters.

use gpumemtrace_format::{Event, EventKind};

use super::ReplayPass;

impl ReplayPass {
    /// Applies a `holders` or `holder` event. Its address refers to a block live at this moment.
    #[cold]
    pub(super) fn on_holder_event(&mut self, event: &Event) {
        let definitions = self.symbols.definitions();
        if event.kind == EventKind::HOLDERS {
            let time = self.now();
            self.holder_scans.begin_scan(event, time, definitions);
            return;
        }
        let device = self.devices.all.get(usize::from(event.device)).and_then(Option::as_ref);
        let site = device.and_then(|device| device.torch.site_at(event.addr));
        self.holder_scans.add_holder(event, site, definitions);
    }

    /// Applies a sample of PyTorch's memory counters on Metal.
    #[cold]
    pub(super) fn on_torch_memory(&mut self, event: &Event) {
        let exact = self.devices.only_metal_device();
        self.mps_samples.add(event, self.now(), exact);
    }
}
