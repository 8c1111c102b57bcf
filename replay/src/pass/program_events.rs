//! The program says who holds its blocks, or what PyTorch says of its memory: of what is live at this moment.

use gpumemtrace_format::{Event, EventKind};

use super::Pass;

impl Pass {
    #[cold]
    pub(super) fn looked(&mut self, event: &Event) {
        let definitions = self.symbols.definitions();
        if event.kind == EventKind::HOLDERS {
            self.looks.look(event, (self.time_ns, self.step), definitions);
            return;
        }
        let device = self.devices.all.get(usize::from(event.device)).and_then(Option::as_ref);
        let site = device.and_then(|device| device.torch.site_at(event.addr));
        self.looks.holder(event, site, definitions);
    }

    /// PyTorch said what it holds.
    #[cold]
    pub(super) fn torch_said(&mut self, event: &Event) {
        let exact = self.devices.only_metal();
        self.torch_memory.sample(event, (self.time_ns, self.step), exact);
    }
}
