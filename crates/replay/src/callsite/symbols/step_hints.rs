//! What stacks say about steps: their paths, optimizer lines, and the stack that begins steps.

use gpumemtrace_format::NodeId;

use super::{AutogradRole, OTHER_TASK, OptimizerLine, RECURRING, RecurringStacks, StackSymbols};
use crate::callsite::call_paths::{CallPaths, PathId};
use crate::callsite::module_calls::{FewerCalls, ModuleCalls, Rounds};
use crate::util::ids::{SiteId, StackId};

impl StackSymbols {
    /// The path of a Python stack; `None` without Python frames.
    #[inline]
    pub(crate) fn path_of_node(&mut self, node: NodeId) -> Option<PathId> {
        self.paths.path_of_node(node, &self.definitions)
    }

    /// All paths so far.
    pub(crate) fn paths(&self) -> &CallPaths {
        &self.paths
    }

    /// Gives these stacks the step hint [`RECURRING`], and calls of the optimizer lines of other
    /// phases the hint of a line. Stacks to come get them as well.
    pub(crate) fn set_step_hints(
        &mut self,
        recurring: Option<RecurringStacks>,
        (line, others): (u16, Vec<u16>),
    ) {
        self.recurring = recurring;
        self.other_phases = others.into_iter().map(|other| (other, line)).collect();
        for index in 0..self.stacks.len() {
            let stack = self.stacks[index];
            self.stacks[index].step_hint = self.step_hint_of(stack.python, stack.optimizer, stack.autograd);
        }
    }

    /// The call site of a path that events have, or their callers.
    pub(crate) fn site_of_path(&self, path: PathId) -> Option<SiteId> {
        let nodes = self.definitions.python.keys();
        let node = nodes.filter(|node| self.paths.known_path(**node) == Some(path)).min()?;
        self.user_site(*node)
    }

    /// Sets how often the program calls its models. The calls of each one matter only in runs
    /// without steps.
    pub(crate) fn set_module_calls(&mut self, calls: &ModuleCalls, has_steps: bool) {
        self.most_module_calls = calls.most_calls();
        self.module_calls = (!has_steps).then(|| calls.clone());
    }

    /// How often the line that calls a module most often did so, at least.
    pub(crate) fn most_module_calls(&self) -> u64 {
        self.most_module_calls
    }

    /// Whether the stack is inside a model that was called fewer times than `rounds`.
    pub(crate) fn has_fewer_calls(&self, stack: StackId, rounds: Rounds) -> FewerCalls {
        let path = self.paths.known_path(self.stack_info(stack).python);
        let known = path.zip(self.module_calls.as_ref());
        known.map_or(FewerCalls::No, |(path, calls)| calls.has_fewer_than(rounds, path, &self.paths))
    }

    /// The known stack with the same Python frames, of another thread; `None` if this is the first.
    /// Stacks that run autograd's engine stay apart, because each waits for threads of its own. So
    /// do stacks that end in native frames, which a path does not have.
    pub(super) fn stack_of_equal_path(
        &mut self,
        (python, native): (NodeId, NodeId),
        site: SiteId,
        autograd: AutogradRole,
    ) -> Option<StackId> {
        let has_native = native != NodeId::NONE || self.is_native_frame(python);
        let is_alone = has_native || autograd != AutogradRole::None;
        let path = self.path_of_node(python).filter(|_| !is_alone)?;
        let next = StackId(self.stacks.len() as u32);
        let known = *self.by_path.entry((path, site)).or_insert(next);
        if known == next {
            return None;
        }
        self.by_python.insert(python.0, known);
        Some(known)
    }

    pub(super) fn step_hint_of(&mut self, python: NodeId, optimizer: u16, autograd: AutogradRole) -> u16 {
        let of_phase = self.other_phases.get(&optimizer).copied().unwrap_or(optimizer);
        let Some(recurring) = self.recurring else { return of_phase };
        let Some(path) = self.path_of_node(python) else { return of_phase };
        match recurring {
            RecurringStacks::At(recurring) if path == recurring => RECURRING,
            RecurringStacks::Below(_) if autograd == AutogradRole::WorksFor => OTHER_TASK,
            RecurringStacks::Below(place) if self.paths.callers(path).any(|caller| caller == place) => {
                RECURRING
            }
            RecurringStacks::Below(place) if self.paths.is_other_task(path, place) => OTHER_TASK,
            _ => of_phase,
        }
    }

    /// The index of the line plus 1; 0 if there are too many lines. Less than [`OTHER_TASK`].
    pub(super) fn intern_optimizer_line(&mut self, line: OptimizerLine) -> u16 {
        let index = self.optimizer_lines.iter().position(|known| *known == line).unwrap_or_else(|| {
            self.optimizer_lines.push(line);
            self.optimizer_lines.len() - 1
        });
        u16::try_from(index + 1).ok().filter(|number| *number < OTHER_TASK).unwrap_or(0)
    }
}
