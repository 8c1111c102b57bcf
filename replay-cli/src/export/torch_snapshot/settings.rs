//! The `allocator_settings` of a snapshot: what the trace knows of PyTorch's configuration.

use std::io;

use super::value_writer::ValueWriter;

/// Writes the settings. `conf` is the text of `PYTORCH_ALLOC_CONF`; `None` if the variable was not
/// set. Settings that the text does not name are left out: the program may have changed them.
pub(super) fn write_settings(conf: Option<&str>, out: &mut dyn ValueWriter) -> io::Result<()> {
    out.begin_dict()?;
    if let Some(conf) = conf {
        out.key("PYTORCH_CUDA_ALLOC_CONF")?;
        out.text(conf)?;
        for (name, value) in conf.split(',').filter_map(|part| part.split_once(':')) {
            write_setting(name.trim(), value.trim(), out)?;
        }
    }
    out.end_dict()
}

/// Writes a setting under the name and in the unit of a snapshot, if it is one of these.
fn write_setting(name: &str, value: &str, out: &mut dyn ValueWriter) -> io::Result<()> {
    match name {
        "expandable_segments" => {
            out.key("expandable_segments")?;
            out.boolean(value == "True")
        }
        "max_split_size_mb" => match value.parse::<u64>().ok().and_then(|mib| mib.checked_mul(1 << 20)) {
            Some(bytes) => {
                out.key("max_split_size")?;
                out.unsigned(bytes)
            }
            None => Ok(()),
        },
        "garbage_collection_threshold" => match value.parse::<f64>() {
            Ok(threshold) if threshold.is_finite() => {
                out.key("garbage_collection_threshold")?;
                out.float(threshold)
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::json_values::JsonWriter;
    use super::*;

    #[test]
    fn settings_keep_their_text_and_get_the_units_of_snapshots() {
        let written = |conf| {
            let mut text = Vec::new();
            write_settings(conf, &mut JsonWriter::new(&mut text)).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(written(None), "{}");
        assert_eq!(
            written(Some("expandable_segments:True, max_split_size_mb:32,backend:native")),
            r#"{"PYTORCH_CUDA_ALLOC_CONF":"expandable_segments:True, max_split_size_mb:32,backend:native","expandable_segments":true,"max_split_size":33554432}"#
        );
        assert_eq!(
            written(Some("garbage_collection_threshold:0.5,max_split_size_mb:x")),
            r#"{"PYTORCH_CUDA_ALLOC_CONF":"garbage_collection_threshold:0.5,max_split_size_mb:x","garbage_collection_threshold":0.5}"#
        );
    }
}
