//! The search for the smallest card with each setting.

use gpumemtrace_whatif::{CardSearch, PredictedRow, PredictionStatus, Scenario};

use super::{DEFAULT_SETTINGS, FitArgs};
use crate::commands::whatif::scenarios_of_settings;

/// The search for each setting: the recorded one, then those that the user named.
pub(super) fn searches(args: &FitArgs, base: &Scenario) -> anyhow::Result<Vec<SettingSearch>> {
    let version = args.run.torch.unwrap_or(base.version);
    let mut scenarios = vec![Scenario::new_or_refused(&base.setting, version, None)];
    scenarios.extend(scenarios_of_settings(&args.alloc_conf, version, None)?);
    if args.alloc_conf.is_empty() {
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
pub(super) struct SettingSearch {
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

    /// The row of the smallest card, and that of the largest one that is too small.
    pub(super) fn into_rows(self) -> impl Iterator<Item = PredictedRow> {
        [self.smallest, self.too_small].into_iter().flatten()
    }

    /// What to predict next.
    pub(super) fn next(&self) -> Vec<Scenario> {
        let cards = if self.is_refused { Vec::new() } else { self.cards.next_cards() };
        cards.into_iter().map(|card_bytes| self.scenario.on_card(card_bytes)).collect()
    }

    /// Notes the rows of [`next`](Self::next), among others.
    pub(super) fn note(&mut self, rows: &[PredictedRow]) {
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
