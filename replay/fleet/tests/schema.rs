//! The schemas in `docs/` are those of the types. To write them, set `UPDATE_SCHEMAS=1` and run
//! `cargo test -p gpumemtrace-fleet --test schema`.

use std::path::Path;

use gpumemtrace_fleet::Fleet;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;

fn assert_is_committed<Document: JsonSchema>(name: &str) {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let schema = generator.into_root_schema_for::<Document>().to_value();
    let text = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(&path, &text).expect("the schema is writable");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == text, "run UPDATE_SCHEMAS=1 cargo test -p gpumemtrace-fleet --test schema");
}

#[test]
fn committed_schemas_are_those_of_the_types() {
    assert_is_committed::<Fleet>("fleet.schema.json");
}
