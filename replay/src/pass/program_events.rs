//! The program says who holds its blocks, or what PyTorch says of its memory: of what is live at this moment.

use gpumemtrace_format::{Event, EventKind};

use super::ReplayPass;

impl ReplayPass {
    #[cold]
    pub(super) fn on_holder_event(&mut self, event: &Event) {
        let definitions = self.symbols.definitions();
        if event.kind == EventKind::HOLDERS {
            self.holder_scans.look(event, (self.time_ns, self.step), definitions);
            return;
        }
        let device = self.devices.all.get(usize::from(event.device)).and_then(Option::as_ref);
        let site = device.and_then(|device| device.torch.site_at(event.addr));
        self.holder_scans.holder(event, site, definitions);
    }

    /// PyTorch said what it holds.
    #[cold]
    pub(super) fn on_torch_memory(&mut self, event: &Event) {
        let exact = self.devices.only_metal();
        self.mps_samples.sample(event, (self.time_ns, self.step), exact);
    }
}
