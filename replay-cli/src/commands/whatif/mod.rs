//! `gpumemtrace whatif`: predicts a recorded run with other settings of PyTorch's allocator.

use std::ops::ControlFlow;
use std::path::PathBuf;

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_format::size_arg::parse_bytes;
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::report::{Device, Report};
use gpumemtrace_replay::{Analysis, AnalysisOptions, analyse_with_head, report, symbolize_sites};
use gpumemtrace_whatif::{Doubt, PredictedRow, SCHEMA, Scenario, VERSION, WhatIf, WhatIfAnswer, WhatIfRow};

use super::display_args::DisplayArgs;
use super::trace_args::TraceArgs;
use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::render::wording::whatif::describe_doubts;
use crate::render::{
    RenderContext, Renderer, WHATIF_RENDERERS, format_parser, print_document, select_format,
};
use crate::symbolize::Resolver;
use crate::terminal::status_line;
use crate::trace::open::TraceSource;

/// The settings that are tried if the user names none. Those that a version does not know are left
/// out.
const GRID: &[&str] = &[
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "large_segment_size_mb:64",
    "large_segment_size_mb:256",
    "expandable_segments:True,roundup_power2_divisions:8",
];

#[derive(clap::Args)]
pub(crate) struct WhatIfArgs {
    /// Trace, or snapshot of PyTorch
    trace: PathBuf,
    /// Settings to try, in the syntax of PYTORCH_ALLOC_CONF (repeatable) [default: a grid]
    #[arg(long, value_name = "CONF")]
    set: Vec<String>,
    /// Try a grid of settings beside those of --set
    #[arg(long)]
    grid: bool,
    /// Memory of the card, such as 24GiB [default: that of the recorded run]
    #[arg(long, value_name = "SIZE", value_parser = parse_card)]
    card: Option<u64>,
    /// Version of PyTorch, such as 2.9 [default: that of the recorded run]
    ///
    /// A snapshot does not say which version wrote it. There, this is that version.
    #[arg(long, value_name = "VERSION", value_parser = |text: &str| TorchVersion::parse(text))]
    torch: Option<TorchVersion>,
    /// The GPU to predict [default: the one with the most reserved memory]
    #[arg(long, value_name = "GPU")]
    device: Option<u8>,
    #[command(flatten)]
    reading: TraceArgs,
    #[command(flatten)]
    display: DisplayArgs,
    /// Print JSON (schema: docs/whatif.schema.json)
    #[arg(long)]
    json: bool,
    /// Output format on stdout
    #[arg(long, value_name = "FORMAT", conflicts_with = "json", value_parser = format_parser(WHATIF_RENDERERS))]
    format: Option<&'static dyn Renderer<WhatIfAnswer>>,
}

fn parse_card(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| format!("{text:?} is no size; write 24GiB, or a number of bytes"))
}

pub(crate) fn run(args: &WhatIfArgs) -> anyhow::Result<CliExit> {
    status_line::exit_cleanly_on_interrupt()?;
    let (file, ring) = TraceSource::find(&args.trace)?;
    let progress = args.reading.shows_progress().then(|| file.progress());
    let options = AnalysisOptions { user_code: args.reading.user_code()?, ..Default::default() };
    let (mut analysis, head) = file.with_input(ring, |input| analyse_with_head(input, options))?;
    let facts = report(std::slice::from_ref(&analysis), &[]);
    let device = choose_device(&facts, args)?;
    let (base, doubts) = recorded_scenario(&facts, device, args)?;
    let others = scenarios(args, &base)?;
    let mut whatif = WhatIf::new(device.device as u8, base, others, doubts);
    let walked = analysis.walk(&|| file.open(), &head, (None, None), &mut |walked| {
        whatif.on_event(walked);
        ControlFlow::Continue(())
    });
    walked.map_err(|error| UnreadableInput(format!("{} {error}", file.name)))?;
    drop(progress);
    let (base, rows) = whatif.finish();
    let mut resolver = Resolver::new(args.reading.uses_symbol_cache());
    let mut complete = |predicted| complete_row(predicted, &analysis, &mut resolver);
    let answer = WhatIfAnswer {
        schema: SCHEMA,
        version: VERSION,
        path: args.trace.display().to_string(),
        device: device.device as u8,
        base: complete(base),
        rows: rows.into_iter().map(complete).collect(),
    };
    resolver.save_cache();
    let renderer = select_format(WHATIF_RENDERERS, args.format, args.json);
    print_document(renderer, &answer, &RenderContext::new(args.display.style()))?;
    Ok(if facts.traces[0].complete { CliExit::Done } else { CliExit::Incomplete })
}

/// The row with its reason, and with the site of its failure.
fn complete_row(predicted: PredictedRow, analysis: &Analysis, resolver: &mut Resolver) -> WhatIfRow {
    let mut row = predicted.row;
    row.reason = describe_doubts(&predicted.doubts);
    if let Some((failure, stack)) = row.first_failure.as_mut().zip(predicted.failed_stack) {
        let mut sites = analysis.sites_of_stacks(&[stack]);
        symbolize_sites(sites.iter_mut(), analysis, NameScope::ALL, resolver);
        failure.site = sites.pop();
    }
    row
}

/// The device that the user named, else the one with the most reserved memory.
fn choose_device<'a>(facts: &'a Report, args: &WhatIfArgs) -> anyhow::Result<&'a Device> {
    let with_torch = facts.devices.iter().filter(|device| device.peak.reserved_bytes.is_some());
    let chosen = match args.device {
        Some(ordinal) => with_torch.clone().find(|device| device.device == u32::from(ordinal)),
        None => with_torch.clone().max_by_key(|device| device.peak.reserved_bytes),
    };
    chosen.ok_or_else(|| {
        let why = match args.device {
            Some(ordinal) => format!("PyTorch reserved no memory on GPU {ordinal}; leave --device out"),
            None => "PyTorch's allocator was not recorded; record the run with gpumemtrace run".to_owned(),
        };
        UsageError(format!("{}: {why}", args.trace.display())).into()
    })
}

/// The recorded run as a scenario, and what is doubtful about every prediction from it.
fn recorded_scenario(
    facts: &Report,
    device: &Device,
    args: &WhatIfArgs,
) -> anyhow::Result<(Scenario, Vec<Doubt>)> {
    let info = &facts.traces[0];
    let unusable = |why: String| UsageError(format!("{}: {why}", args.trace.display()));
    let version = match (info.torch.as_deref(), args.torch) {
        (Some(torch), _) => TorchVersion::parse(torch).map_err(|error| unusable(error.to_string()))?,
        (None, Some(named)) => named,
        (None, None) => {
            let why = "it does not say which PyTorch ran; name its version, as in --torch 2.9";
            return Err(unusable(why.to_owned()).into());
        }
    };
    let setting = info.allocator_conf.as_deref().unwrap_or("");
    let base = Scenario::new(setting, version, device.total_bytes);
    let base = base.map_err(|error| unusable(format!("its allocator settings: {error}")))?;
    let doubts = (!info.complete).then_some(Doubt::Incomplete);
    Ok((base, doubts.into_iter().collect()))
}

/// What to predict: the user's settings, the grid, and the recorded settings on another card or
/// version.
fn scenarios(args: &WhatIfArgs, base: &Scenario) -> anyhow::Result<Vec<Scenario>> {
    let version = args.torch.unwrap_or(base.version);
    let card_bytes = args.card.or(base.card_bytes);
    let mut scenarios = Vec::new();
    if version != base.version || args.card.is_some() {
        scenarios.extend(Scenario::new(&base.setting, version, card_bytes));
    }
    for setting in &args.set {
        let scenario = Scenario::new(setting, version, card_bytes);
        scenarios.push(scenario.map_err(|error| UsageError(format!("--set {setting}: {error}")))?);
    }
    if args.grid || args.set.is_empty() {
        for setting in GRID {
            scenarios.extend(Scenario::new(setting, version, card_bytes));
        }
    }
    let mut seen = vec![base.clone()];
    scenarios.retain(|scenario| {
        let is_new = !seen.iter().any(|other| other.is_same(scenario));
        seen.push(scenario.clone());
        is_new
    });
    Ok(scenarios)
}
