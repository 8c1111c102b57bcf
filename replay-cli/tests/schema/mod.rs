//! Validates JSON against the schemas that `gpumemtrace schema` prints, or rather the part of JSON
//! Schema that they use. An unknown keyword is a violation, so that the schemas cannot rely on a
//! keyword that is not checked.

use assert_cmd::Command;
use serde_json::{Map, Value};

/// The checksum (CRC-32C) of each schema. Programs that read reports rely on them.
const CHECKSUMS: [(&str, u32); 7] = [
    ("report", 0xd2ca_8751),
    ("comparison", 0xdb68_1de2),
    ("check", 0xe024_e4f5),
    ("job", 0x6ce7_d857),
    ("history", 0xba25_08f0),
    ("whatif", 0xe414_7e0e),
    ("largest", 0xd83b_53df),
];

#[test]
fn schemas_change_on_purpose_only() {
    let names = String::from_utf8(printed(&["schema"])).unwrap();
    let now: Vec<(&str, u32)> =
        names.lines().map(|name| (name, crc32c::crc32c(&printed(&["schema", name])))).collect();
    assert!(
        now == CHECKSUMS,
        "Compare `gpumemtrace schema NAME` of before and after. If the change is meant, the checksums are {now:x?}"
    );
}

fn printed(arguments: &[&str]) -> Vec<u8> {
    let done = Command::cargo_bin("gpumemtrace").unwrap().args(arguments).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// Everything in which `value` is not what the schema of this name says.
pub(crate) fn violations(name: &str, value: &Value) -> Vec<String> {
    let schema = serde_json::from_slice(&printed(&["schema", name])).unwrap();
    let mut found = Vec::new();
    check(&schema, &schema, value, "$", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let none = Map::new();
    let rules = schema.as_object().unwrap_or(&none);
    for (keyword, rule) in rules {
        let holds = match keyword.as_str() {
            "$schema" | "$id" | "title" | "description" | "format" | "$defs" | "properties" | "items" => true,
            "$ref" => {
                let name = rule.as_str().unwrap_or_default().trim_start_matches('#');
                let target = root.pointer(name).unwrap_or_else(|| panic!("no such definition: {rule}"));
                check(root, target, value, at, found);
                true
            }
            "const" => rule == value,
            "enum" => rule.as_array().is_some_and(|choices| choices.contains(value)),
            "type" => match rule {
                Value::Array(names) => names.iter().any(|name| is_type(value, name)),
                name => is_type(value, name),
            },
            "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap_or(0.0)),
            "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap_or(0.0)),
            "required" => {
                let has = |name: &Value| value.get(name.as_str().unwrap_or_default()).is_some();
                !value.is_object() || rule.as_array().is_some_and(|names| names.iter().all(has))
            }
            "additionalProperties" => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    check(root, rule, member, &format!("{at}.{name}"), found);
                }
                true
            }
            "anyOf" => matching(root, rule, value, at) > 0,
            "oneOf" => matching(root, rule, value, at) == 1,
            "minItems" => {
                value.as_array().is_none_or(|items| items.len() as u64 >= rule.as_u64().unwrap_or(0))
            }
            "maxItems" => {
                value.as_array().is_none_or(|items| items.len() as u64 <= rule.as_u64().unwrap_or(0))
            }
            _ => false,
        };
        if !holds {
            found.push(format!("{at}: {keyword} {rule} does not hold"));
        }
    }
    for (name, rule) in rules.get("properties").and_then(Value::as_object).into_iter().flatten() {
        if let Some(member) = value.get(name) {
            check(root, rule, member, &format!("{at}.{name}"), found);
        }
    }
    if let (Some(rule), Some(members)) = (rules.get("items"), value.as_array()) {
        for (index, member) in members.iter().enumerate() {
            check(root, rule, member, &format!("{at}[{index}]"), found);
        }
    }
}

/// The number of choices that `value` satisfies.
fn matching(root: &Value, choices: &Value, value: &Value, at: &str) -> usize {
    let choices = choices.as_array().into_iter().flatten();
    let holds = |choice: &&Value| {
        let mut inner = Vec::new();
        check(root, choice, value, at, &mut inner);
        inner.is_empty()
    };
    choices.filter(holds).count()
}

fn is_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap_or_default() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        _ => false,
    }
}
