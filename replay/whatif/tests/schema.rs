//! `docs/whatif.schema.json` is that of the type. To write it, set `UPDATE_SCHEMAS=1` and run
//! `cargo test -p gpumemtrace-whatif --test schema`.

use std::path::Path;

use gpumemtrace_whatif::WhatIfAnswer;
use schemars::generate::SchemaSettings;

#[test]
fn committed_schema_is_that_of_the_type() {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let schema = generator.into_root_schema_for::<WhatIfAnswer>().to_value();
    let text = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/whatif.schema.json");
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(&path, &text).expect("the schema is writable");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == text, "run UPDATE_SCHEMAS=1 cargo test -p gpumemtrace-whatif --test schema");
}
