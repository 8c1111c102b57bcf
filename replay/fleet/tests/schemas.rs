//! The JSON Schemas in `docs/` are those of the types. `UPDATE_SCHEMAS=1 cargo test -p
//! gpumemtrace-fleet schemas` writes them.

use std::path::Path;

use gpumemtrace_fleet::{CheckDocument, ComparisonDocument, Fleet};
use gpumemtrace_replay::Report;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// Keys that may be absent or `null`: `leaks[].evidence.stream` and `.pool`.
const CAN_BE_NULL: [&str; 2] = ["stream", "pool"];

/// The schema of a document as it is printed: keys that are always there are required.
fn schema_text<Document: JsonSchema>() -> String {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<Document>().to_value();
    forbid_null_of_absent_keys(&mut schema);
    serde_json::to_string_pretty(&schema).expect("JSON") + "\n"
}

/// A key that may be absent is skipped instead of `null`.
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

#[test]
fn committed_schemas_are_those_of_the_types() {
    let schemas = [
        ("report.schema.json", schema_text::<Report>()),
        ("comparison.schema.json", schema_text::<ComparisonDocument>()),
        ("check.schema.json", schema_text::<CheckDocument>()),
        ("fleet.schema.json", schema_text::<Fleet>()),
    ];
    for (name, expected) in schemas {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            std::fs::write(&path, &expected).expect("writable");
        }
        let committed = std::fs::read_to_string(&path).expect("committed");
        assert!(committed == expected, "docs/{name} is outdated; run this test with UPDATE_SCHEMAS=1");
    }
}
