//! `gpumemtrace schema`: prints the JSON Schema of a report.
//!
//! The schemas are made of the types that are serialized. `replay-cli/tests/schema/mod.rs` holds a
//! checksum of each, so that none changes by accident.

use std::io::Write as _;

use clap::ValueEnum;
use gpumemtrace_multirun::{CheckDocument, ComparisonDocument, HistoryReport, JobReport};
use gpumemtrace_replay::Report;
use gpumemtrace_whatif::{LargestAnswer, WhatIfAnswer};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

use crate::exit::CliExit;

#[derive(clap::Args)]
pub(crate) struct SchemaArgs {
    /// The report that the schema describes [default: list the names]
    #[arg(value_enum)]
    name: Option<SchemaName>,
}

#[derive(Clone, Copy, ValueEnum)]
enum SchemaName {
    /// the output of `replay --json`
    Report,
    /// the output of `compare --json`
    Comparison,
    /// the output of `check --json`
    Check,
    /// the output of `ranks --json`
    Job,
    /// the output of `history --json`
    History,
    /// the output of `whatif --json` and `fit --json`
    Whatif,
    /// the output of `simulate --vary --json`
    Largest,
}

/// Keys that may be absent or `null`: `leaks[].evidence.stream` and `.pool`.
const CAN_BE_NULL: [&str; 2] = ["stream", "pool"];

pub(crate) fn run(args: &SchemaArgs) -> anyhow::Result<CliExit> {
    let names = SchemaName::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let text = match args.name {
        Some(name) => serde_json::to_string_pretty(&schema_of(name))?,
        None => names.map(|name| name.get_name().to_owned()).collect::<Vec<_>>().join("\n"),
    };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(CliExit::Done)
}

fn schema_of(name: SchemaName) -> Value {
    match name {
        SchemaName::Report => without_absent_nulls::<Report>(),
        SchemaName::Comparison => without_absent_nulls::<ComparisonDocument>(),
        SchemaName::Check => without_absent_nulls::<CheckDocument>(),
        SchemaName::History => without_absent_nulls::<HistoryReport>(),
        SchemaName::Job => without_absent_nulls::<JobReport>(),
        SchemaName::Whatif => schema::<WhatIfAnswer>().into(),
        SchemaName::Largest => schema::<LargestAnswer>().into(),
    }
}

/// The schema of a document as it is printed: keys that are always there are required.
fn schema<Document: JsonSchema>() -> Schema {
    let generator: SchemaGenerator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<Document>()
}

/// The same, for documents in which a key that may be absent is skipped instead of `null`.
fn without_absent_nulls<Document: JsonSchema>() -> Value {
    let mut schema = schema::<Document>().into();
    forbid_null_of_absent_keys(&mut schema);
    schema
}

fn forbid_null_of_absent_keys(schema: &mut Value) {
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_required = |key: &str| required.iter().any(|name| name == key);
    for (key, rule) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        if !is_required(key) && !CAN_BE_NULL.contains(&key.as_str()) {
            forbid_null(rule);
        }
    }
    match schema {
        Value::Object(members) => members.values_mut().for_each(forbid_null_of_absent_keys),
        Value::Array(members) => members.iter_mut().for_each(forbid_null_of_absent_keys),
        _ => {}
    }
}

fn forbid_null(rule: &mut Value) {
    if let Some(Value::Array(types)) = rule.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = &types[..] {
            rule["type"] = only.clone();
        }
    }
    if let Some(Value::Array(choices)) = rule.get_mut("anyOf") {
        choices.retain(|choice| choice.get("type").is_none_or(|name| name != "null"));
        if let ([Value::Object(only)], Some(rule)) = (choices.clone().as_slice(), rule.as_object_mut()) {
            rule.remove("anyOf");
            rule.extend(only.clone());
        }
    }
}
