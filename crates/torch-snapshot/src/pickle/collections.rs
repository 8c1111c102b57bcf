//! Filling lists and dictionaries, and recognizing them.

use super::machine::PickleMachine;
use crate::error::SnapshotError;
use crate::values::{ContainerBody, ContainerId, SnapshotBuilder, Value};

impl PickleMachine<'_> {
    /// The container under the values from `from` on.
    #[inline]
    pub(super) fn container_below(&self, from: usize) -> Result<ContainerId, SnapshotError> {
        match from.checked_sub(1).and_then(|below| self.stack.get(below)) {
            Some(Value::Container(id)) => Ok(*id),
            _ => Err(self.bytes.damaged("a finished list or dictionary is changed")),
        }
    }

    pub(super) fn append_items(&mut self) -> Result<(), SnapshotError> {
        let from = self.pop_mark()?;
        self.append_from(from)
    }

    /// Appends the values from `from` on to the list below them.
    pub(super) fn append_from(&mut self, from: usize) -> Result<(), SnapshotError> {
        let list = self.container_below(from)?;
        // While its items are taken out below, a list would look empty to itself.
        if self.stack[from..].contains(&Value::Container(list)) {
            return Err(self.bytes.damaged("a list contains itself"));
        }
        // Nearly all lists are the frames of an event, in one piece.
        if matches!(self.builder.containers.body(list), ContainerBody::List(items) if items.is_empty())
            && let Some(stack) = self.builder.stack_of(&self.stack[from..])
        {
            *self.builder.containers.body_mut(list) = ContainerBody::Frames(stack);
            self.stack.truncate(from);
            return Ok(());
        }
        let mut items = match self.builder.containers.body_mut(list) {
            ContainerBody::List(items) => std::mem::take(items),
            ContainerBody::Frames(stack) => {
                let stack = *stack;
                let frames = self.builder.frames_of(stack);
                self.builder.containers.charge(frames.len())?;
                frames
            }
            _ => return Err(self.bytes.damaged("values are appended to a value that is not a list")),
        };
        let had = items.len();
        for at in from..self.stack.len() {
            let item = self.complete(self.stack[at]);
            SnapshotBuilder::push_item(&mut items, item);
        }
        self.builder.containers.charge(items.len() - had)?;
        *self.builder.containers.body_mut(list) = ContainerBody::List(items);
        self.stack.truncate(from);
        Ok(())
    }

    pub(super) fn set_items(&mut self) -> Result<(), SnapshotError> {
        let from = self.pop_mark()?;
        self.set_from(from)
    }

    /// Puts the keys and values from `from` on into the dictionary below them.
    pub(super) fn set_from(&mut self, from: usize) -> Result<(), SnapshotError> {
        let dict = self.container_below(from)?;
        self.read_pairs(from)?;
        let is_new = match self.builder.containers.body(dict) {
            ContainerBody::Dict(pairs) => pairs.is_empty(),
            _ => return Err(self.bytes.damaged("a key is set in a value that is not a dictionary")),
        };
        let recognized = if is_new { self.builder.recognize_dict(&self.pairs)? } else { None };
        let Some(value) = recognized else {
            self.builder.containers.charge(self.pairs.len())?;
            if let ContainerBody::Dict(pairs) = self.builder.containers.body_mut(dict) {
                pairs.append(&mut self.pairs);
            }
            return Ok(());
        };
        self.replace(dict, value);
        self.stack[from - 1] = value;
        self.release_pairs();
        Ok(())
    }

    /// Replaces the values from `from` on by a finished dictionary.
    pub(super) fn make_dict(&mut self, from: usize) -> Result<(), SnapshotError> {
        self.read_pairs(from)?;
        let value = if let Some(value) = self.builder.recognize_dict(&self.pairs)? {
            self.release_pairs();
            value
        } else {
            let pairs = std::mem::take(&mut self.pairs);
            self.builder.unknown_dict(pairs)?
        };
        self.push(value)
    }

    /// Frees the values of a recognized dictionary. Their entries of the memo say so: the numbers
    /// of the containers are given out again.
    fn release_pairs(&mut self) {
        for at in 0..self.pairs.len() {
            let passed_over = self.pairs[at].1;
            if matches!(passed_over, Value::Container(_)) {
                for (entry, id) in self.builder.containers.release(passed_over) {
                    self.memo.replace(entry, id, Value::Released);
                }
            }
        }
    }

    /// Takes the keys and values from `from` on off the stack, into `pairs`.
    pub(super) fn read_pairs(&mut self, from: usize) -> Result<(), SnapshotError> {
        self.pairs.clear();
        if !(self.stack.len() - from).is_multiple_of(2) {
            return Err(self.bytes.damaged("a key has no value"));
        }
        for at in (from..self.stack.len()).step_by(2) {
            let value = self.complete(self.stack[at + 1]);
            // Other keys carry nothing that is known.
            if let Value::Text(key) = self.stack[at] {
                self.pairs.push((key, value));
            }
        }
        self.stack.truncate(from);
        Ok(())
    }

    pub(super) fn make_tuple(&mut self, len: usize) -> Result<(), SnapshotError> {
        let from = self.stack.len().checked_sub(len);
        let from = from.ok_or_else(|| self.bytes.damaged("a value is missing"))?;
        self.make_list(from)
    }

    /// Replaces the values from `from` on by a finished list.
    pub(super) fn make_list(&mut self, from: usize) -> Result<(), SnapshotError> {
        let mut items = Vec::new();
        for at in from..self.stack.len() {
            let item = self.complete(self.stack[at]);
            SnapshotBuilder::push_item(&mut items, item);
        }
        self.stack.truncate(from);
        let value = self.builder.list(items)?;
        self.push(value)
    }

    /// The value of a list that its owner takes: the list is finished then.
    #[inline]
    pub(super) fn complete(&mut self, value: Value) -> Value {
        let Value::Container(id) = value else { return value };
        if self.builder.containers.is_unknown(id) {
            return value;
        }
        let items = match self.builder.containers.body_mut(id) {
            ContainerBody::Replaced(value) => return *value,
            ContainerBody::List(items) => std::mem::take(items),
            ContainerBody::Frames(stack) => {
                let recognized = Value::Stack(*stack);
                self.replace(id, recognized);
                return recognized;
            }
            ContainerBody::Dict(pairs) if pairs.is_empty() => return Value::Empty,
            ContainerBody::Dict(_) => return value,
            ContainerBody::Free => return Value::Nothing,
        };
        let recognized = self.builder.recognize_list(&items);
        *self.builder.containers.body_mut(id) = ContainerBody::List(items);
        if let Some(recognized) = recognized {
            self.replace(id, recognized);
            return recognized;
        }
        self.builder.containers.set_unknown(id);
        value
    }

    /// Replaces a container by what it was recognized as, also in the memo.
    pub(super) fn replace(&mut self, id: ContainerId, value: Value) {
        if let Some(entry) = self.builder.containers.replace(id, value) {
            self.memo.replace(entry, id, value);
        }
    }
}
