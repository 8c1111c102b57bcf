//! The tables that all threads of a profile share: strings, sources, functions, frames, stacks.

use serde::Serialize;

use crate::export::distinct::Distinct;
use crate::export::stacks::{FrameOrigin, ViewerFrame};
use gpumemtrace_format::source_path::file_name;

/// The categories of frames: name and colour, in the order of their numbers. One must be grey.
pub(super) const CATEGORIES: [(&str, &str); 4] =
    [("Other", "grey"), ("User code", "green"), ("Libraries", "blue"), ("Native code", "orange")];

fn category_of(origin: FrameOrigin) -> usize {
    match origin {
        FrameOrigin::Label => 0,
        FrameOrigin::User => 1,
        FrameOrigin::Library => 2,
        FrameOrigin::Native => 3,
    }
}

/// The tables of a profile. Rows are numbered from 0.
#[derive(Debug, Default)]
pub(super) struct SharedTables {
    strings: Distinct<String>,
    sources: Distinct<String>,
    resources: Distinct<String>,
    functions: Distinct<FunctionKey>,
    frames: Distinct<(usize, Option<u32>, FrameOrigin)>,
    stacks: Distinct<(Option<usize>, usize)>,
}

/// Name, source and library, as numbers.
type FunctionKey = (usize, Option<usize>, Option<usize>);

impl SharedTables {
    /// The number of a string.
    pub(super) fn string(&mut self, text: &str) -> usize {
        self.strings.number(text.to_owned())
    }

    /// The number of a stack; `None` for no frames.
    pub(super) fn stack(&mut self, frames: &[ViewerFrame]) -> Option<usize> {
        frames.iter().fold(None, |caller, frame| {
            let frame = self.frame(frame);
            Some(self.stacks.number((caller, frame)))
        })
    }

    fn frame(&mut self, frame: &ViewerFrame) -> usize {
        let name = self.string(&frame.function);
        let source = frame.file.as_ref().map(|file| self.sources.number(file.clone()));
        let resource = frame.module.as_ref().map(|module| self.resources.number(module.clone()));
        let function = self.functions.number((name, source, resource));
        self.frames.number((function, frame.line, frame.origin))
    }

    /// The tables as the profile's `shared`.
    pub(super) fn finish(mut self) -> SharedData {
        let strings = &mut self.strings;
        let files = self.sources.into_values().into_iter();
        let sources: Vec<usize> = files.map(|file| strings.number(file)).collect();
        let modules = self.resources.into_values().into_iter();
        let resources: Vec<usize> =
            modules.map(|module| strings.number(file_name(&module).to_owned())).collect();
        let (functions, frames) = (self.functions.into_values(), self.frames.into_values());
        let stacks = self.stacks.into_values();
        SharedData {
            stack_table: ProfileStacks {
                length: stacks.len(),
                frame: stacks.iter().map(|(_, frame)| *frame).collect(),
                prefix: stacks.iter().map(|(caller, _)| *caller).collect(),
            },
            frame_table: ProfileFrames::new(&frames),
            func_table: FuncTable::new(&functions),
            resource_table: ResourceTable {
                length: resources.len(),
                lib: vec![None; resources.len()],
                host: vec![None; resources.len()],
                kind: vec![ResourceTable::LIBRARY; resources.len()],
                name: resources,
            },
            native_symbols: NativeSymbols::default(),
            sources: SourceTable {
                length: sources.len(),
                id: vec![None; sources.len()],
                start_line: vec![1; sources.len()],
                start_column: vec![1; sources.len()],
                source_map_url: vec![None; sources.len()],
                filename: sources,
            },
            string_array: self.strings.into_values(),
        }
    }
}

/// A column that is always null.
type NullColumn = Vec<Option<u8>>;

/// The tables in the names of the format.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SharedData {
    stack_table: ProfileStacks,
    frame_table: ProfileFrames,
    func_table: FuncTable,
    resource_table: ResourceTable,
    native_symbols: NativeSymbols,
    sources: SourceTable,
    string_array: Vec<String>,
}

#[derive(Serialize)]
struct ProfileStacks {
    length: usize,
    frame: Vec<usize>,
    prefix: Vec<Option<usize>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProfileFrames {
    length: usize,
    address: Vec<i64>,
    inline_depth: Vec<u32>,
    category: Vec<usize>,
    subcategory: Vec<usize>,
    func: Vec<usize>,
    native_symbol: NullColumn,
    #[serde(rename = "innerWindowID")]
    inner_window_id: NullColumn,
    line: Vec<Option<u32>>,
    column: NullColumn,
}

impl ProfileFrames {
    fn new(frames: &[(usize, Option<u32>, FrameOrigin)]) -> Self {
        let length = frames.len();
        Self {
            length,
            // Names are known here, so viewers need no address.
            address: vec![-1; length],
            inline_depth: vec![0; length],
            category: frames.iter().map(|(.., origin)| category_of(*origin)).collect(),
            subcategory: vec![0; length],
            func: frames.iter().map(|(function, ..)| *function).collect(),
            native_symbol: vec![None; length],
            inner_window_id: vec![None; length],
            line: frames.iter().map(|(_, line, _)| *line).collect(),
            column: vec![None; length],
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FuncTable {
    length: usize,
    name: Vec<usize>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    /// The library; -1 for none.
    resource: Vec<i64>,
    source: Vec<Option<usize>>,
    line_number: NullColumn,
    column_number: NullColumn,
}

impl FuncTable {
    fn new(functions: &[FunctionKey]) -> Self {
        let length = functions.len();
        Self {
            length,
            name: functions.iter().map(|(name, ..)| *name).collect(),
            is_js: vec![false; length],
            relevant_for_js: vec![false; length],
            resource: functions
                .iter()
                .map(|(.., module)| module.map_or(-1, |module| module as i64))
                .collect(),
            source: functions.iter().map(|(_, source, _)| *source).collect(),
            line_number: vec![None; length],
            column_number: vec![None; length],
        }
    }
}

#[derive(Serialize)]
struct ResourceTable {
    length: usize,
    lib: NullColumn,
    name: Vec<usize>,
    host: NullColumn,
    #[serde(rename = "type")]
    kind: Vec<u8>,
}

impl ResourceTable {
    /// The type of a shared library.
    const LIBRARY: u8 = 1;
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct NativeSymbols {
    length: usize,
    address: Vec<u64>,
    function_size: Vec<u64>,
    lib_index: Vec<usize>,
    name: Vec<usize>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SourceTable {
    length: usize,
    id: NullColumn,
    filename: Vec<usize>,
    start_line: Vec<u32>,
    start_column: Vec<u32>,
    #[serde(rename = "sourceMapURL")]
    source_map_url: NullColumn,
}
