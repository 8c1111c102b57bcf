//! The JSON Schemas in `docs/` are those of the types. `UPDATE_SCHEMAS=1 cargo test -p gpumemtrace-replay --test schemas`
//! writes them.

use std::path::Path;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::budget::BudgetCheck;
use gpumemtrace_replay::compare::Comparison;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;

/// The schema of a document as it is printed: keys that are always there are required.
fn schema_text<Document: JsonSchema>() -> String {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let schema = generator.into_root_schema_for::<Document>();
    serde_json::to_string_pretty(&schema).expect("JSON") + "\n"
}

#[test]
fn committed_schemas_are_those_of_the_types() {
    let schemas = [
        ("report.schema.json", schema_text::<Report>()),
        ("comparison.schema.json", schema_text::<Comparison>()),
        ("check.schema.json", schema_text::<BudgetCheck>()),
    ];
    for (name, expected) in schemas {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            std::fs::write(&path, &expected).expect("writable");
        }
        let committed = std::fs::read_to_string(&path).expect("committed");
        assert!(committed == expected, "docs/{name} is outdated; run this test with UPDATE_SCHEMAS=1");
    }
}
