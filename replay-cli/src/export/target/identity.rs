//! What identifies a trace among others, from its metadata.

use gpumemtrace_format::Meta;
use gpumemtrace_multirun::Process;

/// The process, the file and the rank of a trace, as far as the trace has them. Numbers above
/// 2^63 - 1, which SQL has no type for, count as unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceIdentity {
    /// Host, process id and start.
    pub process: Process,
    /// The id of the trace.
    pub trace_id: Option<String>,
    /// The path as given.
    pub path: String,
    /// The rank that the process reported.
    pub rank: Option<u64>,
    /// The number of ranks of its job.
    pub world_size: Option<u64>,
}

impl TraceIdentity {
    /// Takes the facts from the metadata of the trace with this path.
    pub fn new(path: &str, meta: &Meta) -> Self {
        let text = |name: &str| meta.text(name).map(str::to_owned);
        let number = |name: &str| meta.number(name).filter(|number| i64::try_from(*number).is_ok());
        Self {
            process: Process {
                host: text("host"),
                pid: number("pid"),
                started_unix_ns: number("started_unix_ns"),
            },
            trace_id: text("trace_id"),
            path: path.to_owned(),
            rank: number("rank"),
            world_size: number("world_size"),
        }
    }

    /// The place of the process among others: by host, start and process id. The same for every
    /// order of the traces.
    pub fn process_order(&self) -> impl Ord + '_ {
        let Process { host, pid, started_unix_ns } = &self.process;
        (host, started_unix_ns, pid, &self.trace_id, &self.path)
    }
}
