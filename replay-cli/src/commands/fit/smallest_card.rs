//! Finds the smallest card that holds a recorded run.

use std::path::Path;

use gpumemtrace_whatif::{CardSearch, PredictedRow, PredictionStatus, Scenario, WhatIfRows};

use super::{DEFAULT_SETTINGS, FitArgs};
use crate::commands::whatif::recorded_run::RecordedRun;
use crate::commands::whatif::scenarios_of_settings;
use crate::exit::CliExit;
use crate::render::{FIT_RENDERERS, FitDocument, RenderContext, print_document, select_format};

pub(super) fn run(args: &FitArgs, trace: &Path) -> anyhow::Result<CliExit> {
    let mut run = RecordedRun::open(trace, &args.run)?;
    let mut searches = searches(args, &run.base)?;
    let last = loop {
        let predicted = run.predict(searches.iter().flat_map(SettingSearch::next).collect(), 0)?;
        for search in &mut searches {
            search.note(&predicted.rows);
        }
        if searches.iter().all(|search| search.next().is_empty()) {
            break predicted;
        }
    };
    let rows = searches.into_iter().flat_map(|search| [search.smallest, search.too_small]);
    let answer = FitDocument::SmallestCard(Box::new(
        run.answer(WhatIfRows { rows: rows.flatten().collect(), ..last }),
    ));
    let renderer = select_format(FIT_RENDERERS, args.format, args.json);
    print_document(renderer, &answer, &RenderContext::new(args.display.style()))?;
    Ok(run.exit())
}

/// The search for each setting: the recorded one, then those that the user named.
fn searches(args: &FitArgs, base: &Scenario) -> anyhow::Result<Vec<SettingSearch>> {
    let version = args.run.torch.unwrap_or(base.version);
    let mut scenarios = vec![Scenario::new_or_refused(&base.setting, version, None)];
    scenarios.extend(scenarios_of_settings(&args.set, version, None)?);
    if args.set.is_empty() {
        let defaults = DEFAULT_SETTINGS.iter().flat_map(|setting| Scenario::new(setting, version, None));
        scenarios.extend(defaults);
    }
    let mut distinct: Vec<Scenario> = Vec::new();
    for scenario in scenarios {
        if !distinct.iter().any(|other| other.is_same(&scenario)) {
            distinct.push(scenario);
        }
    }
    Ok(distinct.into_iter().map(SettingSearch::new).collect())
}

/// The search for the smallest card with one setting.
struct SettingSearch {
    scenario: Scenario,
    cards: CardSearch,
    is_refused: bool,
    /// The row of the smallest card so far that holds the run.
    smallest: Option<PredictedRow>,
    /// The row of the largest card so far that is too small, or a row without a prediction.
    too_small: Option<PredictedRow>,
}

impl SettingSearch {
    fn new(scenario: Scenario) -> Self {
        Self { scenario, cards: CardSearch::default(), is_refused: false, smallest: None, too_small: None }
    }

    /// What to predict next.
    fn next(&self) -> Vec<Scenario> {
        let cards = if self.is_refused { Vec::new() } else { self.cards.next_cards() };
        cards.into_iter().map(|card_bytes| self.scenario.on_card(card_bytes)).collect()
    }

    /// Notes the rows of [`next`](Self::next), among others.
    fn note(&mut self, rows: &[PredictedRow]) {
        let own = rows.iter().filter(|predicted| predicted.row.setting == self.scenario.setting);
        let mut own: Vec<(u64, &PredictedRow)> =
            own.filter_map(|predicted| Some((predicted.row.card_bytes?, predicted))).collect();
        own.sort_by_key(|(card_bytes, _)| *card_bytes);
        if let Some((_, refused)) = own.iter().find(|(_, own)| own.row.status == PredictionStatus::Refused) {
            self.is_refused = true;
            self.too_small = Some((*refused).clone());
            return;
        }
        let answers = own.iter().map(|(card_bytes, predicted)| (*card_bytes, predicted.row.ooms == 0));
        self.cards.note(&answers.collect::<Vec<_>>());
        for (card_bytes, predicted) in own {
            if Some(card_bytes) == self.cards.works_bytes {
                self.smallest = Some(predicted.clone());
            }
            if Some(card_bytes) == self.cards.fails_bytes {
                self.too_small = Some(predicted.clone());
            }
        }
    }
}
