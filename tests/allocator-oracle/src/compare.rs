//! Compares a model's events with those of PyTorch's allocator, request by request.

use std::collections::VecDeque;
use std::fmt;

use anyhow::Result;

use crate::event::{OracleEvent, STATISTICS, SegmentChange};
use crate::request::OracleRequest;

/// Requests that a disagreement shows.
const SHOWN_REQUESTS: usize = 20;

/// A model of the allocator on one device.
pub trait ModelledAllocator {
    /// Serves a request and appends what happened, in order. `number` counts requests from 0.
    fn serve(&mut self, number: u64, request: &OracleRequest, events: &mut Vec<OracleEvent>) -> Result<()>;
}

/// How much a comparison has covered, all of it equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Agreement {
    /// Requests that were served.
    pub requests: u64,
    /// Events that were compared.
    pub events: u64,
    /// Segments allocated, freed, mapped and unmapped.
    pub segment_events: u64,
    /// Allocation requests that failed.
    pub out_of_memory: u64,
    /// Frees that completed later.
    pub deferred_frees: u64,
}

/// The first event that differs.
#[derive(Clone, PartialEq, Debug)]
pub struct Disagreement {
    /// What was equal before.
    pub before: Agreement,
    /// The last requests, with their numbers; the last one is served differently.
    pub requests: Vec<(u64, OracleRequest)>,
    /// The model's event, or `None` if it had none.
    pub model: Option<OracleEvent>,
    /// PyTorch's event, or `None` if its log ended.
    pub native: Option<OracleEvent>,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines =
            |event: &Option<OracleEvent>| event.as_ref().map_or("none".to_owned(), ToString::to_string);
        writeln!(formatter, "the model differs after {} equal events", self.before.events)?;
        for (number, request) in &self.requests {
            writeln!(formatter, "  request {number}: {request}")?;
        }
        writeln!(formatter, "  model:   {}", lines(&self.model))?;
        writeln!(formatter, "  PyTorch: {}", lines(&self.native))?;
        if let (Some(OracleEvent::Statistics(model)), Some(OracleEvent::Statistics(native))) =
            (&self.model, &self.native)
        {
            for (name, (model, native)) in STATISTICS.iter().zip(model.iter().zip(native)) {
                if model != native {
                    writeln!(formatter, "  {name}: model {model}, PyTorch {native}")?;
                }
            }
        }
        Ok(())
    }
}

/// Serves each request with the model and compares its events with the native log.
///
/// Frees that complete during one request are compared as a set. After the first private pool, so
/// are the segments that one request frees: PyTorch visits streams, and private pools, in the order
/// of hash tables.
pub fn compare(
    requests: impl Iterator<Item = Result<OracleRequest>>,
    native: impl Iterator<Item = Result<OracleEvent>>,
    model: &mut dyn ModelledAllocator,
) -> Result<std::result::Result<Agreement, Box<Disagreement>>> {
    let mut native = EventsInOrder::new(native);
    let mut agreement = Agreement::default();
    let mut recent = VecDeque::new();
    let mut events = Vec::new();
    let disagree = |before, recent: VecDeque<_>, model, native| {
        Ok(Err(Box::new(Disagreement { before, requests: recent.into(), model, native })))
    };
    for request in requests {
        let request = request?;
        native.sorts_segments |= matches!(request, OracleRequest::BeginPool(..));
        events.clear();
        model.serve(agreement.requests, &request, &mut events)?;
        sort_runs(&mut events, native.sorts_segments);
        if recent.len() == SHOWN_REQUESTS {
            recent.pop_front();
        }
        recent.push_back((agreement.requests, request));
        for event in &events {
            let found = native.next().transpose()?;
            if found.as_ref() != Some(event) {
                return disagree(agreement, recent, Some(event.clone()), found);
            }
            agreement.count(event);
        }
        agreement.requests += 1;
    }
    match native.next().transpose()? {
        None => Ok(Ok(agreement)),
        extra => disagree(agreement, recent, None, extra),
    }
}

impl Agreement {
    fn count(&mut self, event: &OracleEvent) {
        self.events += 1;
        match event {
            OracleEvent::Segment { .. } => self.segment_events += 1,
            OracleEvent::OutOfMemory { .. } => self.out_of_memory += 1,
            OracleEvent::FreeCompleted { .. } => self.deferred_frees += 1,
            OracleEvent::Allocated(_) | OracleEvent::Statistics(_) => {}
        }
    }
}

/// The request of an event without a fixed order, and whether it frees a segment.
fn unordered(event: &OracleEvent, sorts_segments: bool) -> Option<(u64, bool)> {
    match event {
        OracleEvent::FreeCompleted { request, .. } => Some((*request, false)),
        OracleEvent::Segment { change: SegmentChange::Freed, request, .. } if sorts_segments => {
            Some((*request, true))
        }
        _ => None,
    }
}

fn sort_runs(events: &mut [OracleEvent], sorts_segments: bool) {
    let in_run = |first: &OracleEvent, second: &OracleEvent| {
        let run = unordered(first, sorts_segments);
        run.is_some() && run == unordered(second, sorts_segments)
    };
    for run in events.chunk_by_mut(in_run) {
        if run.len() > 1 {
            run.sort_unstable();
        }
    }
}

/// The events of a log, with the frees that complete during one request sorted by address.
///
/// PyTorch's own order follows hash tables and heap addresses, and changes from run to run.
pub struct EventsInOrder<I: Iterator> {
    events: std::iter::Peekable<I>,
    ready: VecDeque<OracleEvent>,
    /// Also sorts the segments that one request frees.
    sorts_segments: bool,
}

impl<I: Iterator<Item = Result<OracleEvent>>> EventsInOrder<I> {
    /// Sorts the completed frees of a log.
    pub fn new(events: I) -> Self {
        Self { events: events.peekable(), ready: VecDeque::new(), sorts_segments: false }
    }

    /// Takes the rest of the run that `first` begins, and returns its least event.
    fn take_run(&mut self, first: OracleEvent) -> Result<OracleEvent> {
        let sorts = self.sorts_segments;
        let key = unordered(&first, sorts);
        let mut run = vec![first];
        let in_run =
            |event: &Result<OracleEvent>| matches!(event, Ok(event) if unordered(event, sorts) == key);
        while let Some(event) = self.events.next_if(in_run) {
            run.push(event?);
        }
        run.sort_unstable();
        self.ready = run.split_off(1).into();
        Ok(run.remove(0))
    }
}

impl<I: Iterator<Item = Result<OracleEvent>>> Iterator for EventsInOrder<I> {
    type Item = Result<OracleEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(event) = self.ready.pop_front() {
            return Some(Ok(event));
        }
        match self.events.next()? {
            Ok(first) if unordered(&first, self.sorts_segments).is_some() => Some(self.take_run(first)),
            other => Some(other),
        }
    }
}
