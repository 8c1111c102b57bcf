//! The tables that samples refer to: strings, mappings, functions and locations.

use super::Message;
use crate::export::distinct::Distinct;
use crate::export::stacks::{FrameOrigin, ViewerFrame};

/// The tables of a profile. Strings count from 0, which is the empty string. Ids count from 1.
#[derive(Debug)]
pub(super) struct PprofTables {
    strings: Distinct<String>,
    /// By file. Without addresses, because functions are named here.
    mappings: Distinct<String>,
    /// By name and file.
    functions: Distinct<(String, String)>,
    locations: Distinct<ViewerFrame>,
    /// The encoded tables but the strings.
    rows: Message,
}

impl PprofTables {
    /// Tables of a program, to which frames outside of libraries belong.
    pub(super) fn new(program: String) -> Self {
        let mut tables = Self {
            strings: Distinct::default(),
            mappings: Distinct::default(),
            functions: Distinct::default(),
            locations: Distinct::default(),
            rows: Message::new(),
        };
        tables.string("");
        tables.mapping(program);
        tables
    }

    /// The number of a string.
    pub(super) fn string(&mut self, text: &str) -> u64 {
        self.strings.number(text.to_owned()) as u64
    }

    fn mapping(&mut self, file: String) -> u64 {
        let name = self.string(&file);
        let (id, is_new) = id_of(self.mappings.number_if_new(file));
        if is_new {
            // Readers symbolize mappings that do not claim to have names, files and lines.
            let mut mapping = Message::new();
            mapping.uint(1, id).uint(5, name).uint(7, 1).uint(8, 1).uint(9, 1);
            self.rows.message(3, &mapping);
        }
        id
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let (id, is_new) = id_of(self.functions.number_if_new((name.to_owned(), file.to_owned())));
        if is_new {
            let (name, file) = (self.string(name), self.string(file));
            // Without a system name: readers would demangle an equal one, and `<module>` away.
            let mut function = Message::new();
            function.uint(1, id).uint(2, name).uint(4, file);
            self.rows.message(5, &function);
        }
        id
    }

    /// The id of the location of a frame.
    pub(super) fn location(&mut self, frame: &ViewerFrame) -> u64 {
        let (id, is_new) = id_of(self.locations.number_if_new(frame.clone()));
        if is_new {
            let module = frame.module.clone().filter(|_| frame.origin == FrameOrigin::Native);
            let mapping = module.map_or(1, |module| self.mapping(module));
            let function = self.function(&frame.function, frame.file.as_deref().unwrap_or_default());
            let mut line = Message::new();
            line.uint(1, function).uint(2, u64::from(frame.line.unwrap_or_default()));
            let mut location = Message::new();
            location.uint(1, id).uint(2, mapping).message(4, &line);
            self.rows.message(4, &location);
        }
        id
    }

    /// Appends the tables to a profile.
    pub(super) fn write(self, profile: &mut Message) {
        profile.append(&self.rows);
        for string in self.strings.into_values() {
            profile.str(6, &string);
        }
    }
}

/// Ids count from 1: 0 is none.
fn id_of((number, is_new): (usize, bool)) -> (u64, bool) {
    (number as u64 + 1, is_new)
}
