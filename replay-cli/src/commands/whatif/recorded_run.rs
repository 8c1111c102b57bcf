//! A recorded run, and predictions from it.

use std::ops::ControlFlow;
use std::path::Path;

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::ingest::TraceHead;
use gpumemtrace_replay::report::{Device, Report};
use gpumemtrace_replay::{Analysis, AnalysisOptions, analyse_with_head, report, symbolize_sites};
use gpumemtrace_whatif::{
    Doubt, KnownCard, PredictedRow, SCHEMA, Scenario, VERSION, WhatIf, WhatIfAnswer, WhatIfRow, WhatIfRows,
};

use crate::commands::args::trace::TraceArgs;
use crate::commands::setting_predictions::{RecordedScenario, recorded_scenario};
use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::render::wording::whatif::describe_doubts;
use crate::symbolize::Resolver;
use crate::trace::open::TraceSource;

#[derive(clap::Args, Default)]
pub(in crate::commands) struct RecordedRunArgs {
    /// Version of PyTorch, such as 2.9 [default: that of the recorded run]
    ///
    /// A snapshot does not say which version wrote it. Its keys leave one or a few, which are used
    /// unless you name one of them here.
    #[arg(long, value_name = "VERSION", value_parser = |text: &str| TorchVersion::parse(text))]
    pub(in crate::commands) torch: Option<TorchVersion>,
    /// The GPU to predict [default: the one with the most reserved memory]
    #[arg(long, value_name = "N")]
    gpu: Option<u8>,
    #[command(flatten)]
    reading: TraceArgs,
}

/// A trace that was analysed, the device to predict, and what it ran with.
pub(in crate::commands) struct RecordedRun {
    path: String,
    file: TraceSource,
    analysis: Analysis,
    head: TraceHead,
    device: u8,
    /// The card's name, as the driver reports it.
    device_name: Option<String>,
    /// The most bytes of segments, as the run reports them.
    pub(in crate::commands) peak_reserved_bytes: u64,
    /// The settings, version and card of the recorded run.
    pub(in crate::commands) base: Scenario,
    /// The versions of PyTorch that may have run.
    versions: Vec<TorchVersion>,
    /// The number of steps; `None` if there are no step boundaries.
    steps: Option<u64>,
    /// The most memory of tensors at a time, without what had no memory.
    peak_allocated_bytes: Option<u64>,
    /// What is doubtful about every prediction from it.
    doubts: Vec<Doubt>,
    pub(in crate::commands) is_complete: bool,
    shows_progress: bool,
}

impl RecordedRun {
    /// Reads the trace once.
    pub(in crate::commands) fn open(trace: &Path, args: &RecordedRunArgs) -> anyhow::Result<Self> {
        let (file, ring) = TraceSource::find(trace)?;
        let shows_progress = args.reading.shows_progress();
        let progress = shows_progress.then(|| file.progress());
        let options = AnalysisOptions { user_code: args.reading.user_code()?, ..Default::default() };
        let (analysis, head) = file.with_input(ring, |input| analyse_with_head(input, options))?;
        drop(progress);
        let facts = report(std::slice::from_ref(&analysis), &[]);
        let device = choose_device(&facts, trace, args)?;
        let recorded = recorded_scenario(&facts.traces[0], device, args.torch);
        let RecordedScenario { base, versions, doubts } =
            recorded.map_err(|why| UsageError(format!("{}: {why}", trace.display())))?;
        let mut run = Self {
            path: trace.display().to_string(),
            file,
            analysis,
            head,
            device: device.device as u8,
            device_name: device.name.clone(),
            peak_reserved_bytes: device.peak.reserved_bytes.unwrap_or(0),
            base,
            versions,
            steps: facts.steps.as_ref().and_then(|steps| steps.source.and(steps.count)),
            peak_allocated_bytes: device
                .sleep
                .map_or(device.peak.live_bytes, |sleep| Some(sleep.peak_backed_bytes)),
            doubts,
            is_complete: facts.traces[0].complete,
            shows_progress,
        };
        run.choose_version()?;
        Ok(run)
    }

    /// Keeps the versions with which the model reserves what the run reserved, if there are some,
    /// and takes the newest of them.
    fn choose_version(&mut self) -> anyhow::Result<()> {
        if self.versions.len() < 2 {
            return Ok(());
        }
        let scenarios = self.versions.iter().map(|version| {
            let scenario = Scenario::new(&self.base.setting, *version, self.base.card_bytes);
            scenario.map(|scenario| WhatIf::new(self.device, scenario, Vec::new(), Vec::new()))
        });
        let mut whatifs: Vec<WhatIf> = scenarios.flatten().collect();
        self.walk(&mut whatifs)?;
        let differs = |doubt: &Doubt| matches!(doubt, Doubt::ModelDiffers { .. });
        let bases = self.versions.iter().zip(whatifs.into_iter().map(|whatif| whatif.finish().base));
        let equal = bases.filter(|(_, base)| !base.doubts.iter().any(differs));
        let equal: Vec<TorchVersion> = equal.map(|(version, _)| *version).collect();
        if let Some(newest) = equal.last() {
            self.base = Scenario::new(&self.base.setting, *newest, self.base.card_bytes)?;
            self.versions = equal;
        }
        Ok(())
    }

    fn walk(&mut self, whatifs: &mut [WhatIf]) -> anyhow::Result<()> {
        let _progress = self.shows_progress.then(|| self.file.progress());
        let file = &self.file;
        let walked = self.analysis.walk(&|| file.open(), &self.head, (None, None), &mut |walked| {
            for whatif in whatifs.iter_mut() {
                whatif.on_event(walked);
            }
            ControlFlow::Continue(())
        });
        walked.map_err(|error| UnreadableInput(format!("{} {error}", file.name)))?;
        Ok(())
    }

    /// Whether the recorded run used a card of this model.
    pub(in crate::commands) fn was_on(&self, card: KnownCard) -> bool {
        self.device_name.as_deref().is_some_and(|name| card.is_named(name))
    }

    /// The recorded run as the model predicts it, and the others, the best first. Each is also
    /// predicted with so many other `orders` of addresses.
    pub(in crate::commands) fn predict(
        &mut self,
        others: Vec<Scenario>,
        orders: u32,
    ) -> anyhow::Result<WhatIfRows> {
        let mut whatif = WhatIf::new(self.device, self.base.clone(), others, self.doubts.clone());
        whatif = whatif.with_orders(orders).with_releases(&self.versions);
        let mut whatifs = [whatif];
        self.walk(&mut whatifs)?;
        let [whatif] = whatifs;
        Ok(whatif.finish())
    }

    /// The rows with their reasons, and with the sites of their failures.
    pub(in crate::commands) fn answer(&self, predicted: WhatIfRows) -> WhatIfAnswer {
        let WhatIfRows { base, rows, start, may_need_more, is_reproduced } = predicted;
        let mut resolver = Resolver::for_user();
        let mut complete = |predicted| self.complete_row(predicted, &mut resolver);
        let answer = WhatIfAnswer {
            schema: SCHEMA,
            version: VERSION,
            path: self.path.clone(),
            device: self.device,
            base: complete(base),
            rows: rows.into_iter().map(complete).collect(),
            torch_releases: self.version_range(),
            steps: self.steps,
            is_reproduced,
            start,
            least_card_bytes: self.peak_allocated_bytes,
            may_need_more,
        };
        resolver.save_cache();
        answer
    }

    /// The oldest and the newest version that may have run, if there are several.
    fn version_range(&self) -> Option<[String; 2]> {
        let [oldest, .., newest] = &self.versions[..] else { return None };
        Some([oldest.to_string(), newest.to_string()])
    }

    fn complete_row(&self, predicted: PredictedRow, resolver: &mut Resolver) -> WhatIfRow {
        let mut row = predicted.row;
        row.reason = describe_doubts(&predicted.doubts);
        if let Some((failure, stack)) = row.first_failure.as_mut().zip(predicted.failed_stack) {
            let mut sites = self.analysis.sites_of_stacks(&[stack]);
            symbolize_sites(sites.iter_mut(), &self.analysis, NameScope::ALL, resolver);
            failure.site = sites.pop();
        }
        row
    }

    /// How the command ends if nothing else is wrong.
    pub(in crate::commands) fn exit(&self) -> CliExit {
        if self.is_complete { CliExit::Done } else { CliExit::Incomplete }
    }
}

/// The device that the user named, else the one with the most reserved memory.
fn choose_device<'a>(facts: &'a Report, trace: &Path, args: &RecordedRunArgs) -> anyhow::Result<&'a Device> {
    let with_torch = facts.devices.iter().filter(|device| device.peak.reserved_bytes.is_some());
    let chosen = match args.gpu {
        Some(ordinal) => with_torch.clone().find(|device| device.device == u32::from(ordinal)),
        None => with_torch.clone().max_by_key(|device| device.peak.reserved_bytes),
    };
    chosen.ok_or_else(|| {
        let why = match args.gpu {
            Some(ordinal) => format!("PyTorch reserved no memory on GPU {ordinal}; leave --gpu out"),
            None if !facts.traces[0].complete => {
                "the trace is incomplete, and has no memory of PyTorch; gpumemtrace info says what is missing"
                    .to_owned()
            }
            None => "PyTorch's allocator was not recorded; record the run with gpumemtrace run".to_owned(),
        };
        UsageError(format!("{}: {why}", trace.display())).into()
    })
}
