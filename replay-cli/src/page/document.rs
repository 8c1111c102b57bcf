//! The HTML document around the data.
//!
//! Names and paths of a trace are untrusted. They are in the page as compressed base64 only, except
//! for the title and the text for browsers without JavaScript, which are escaped. The content
//! security policy allows nothing but the page's own script and style, by their hashes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::terminal::escape::escape_html;

/// A script and a style with the hashes of both, as `web/build.mjs` writes them.
#[derive(Clone, Copy)]
pub(super) struct Bundle {
    script: &'static str,
    style: &'static str,
    script_hash: &'static str,
    style_hash: &'static str,
}

impl Bundle {
    /// The page of one run.
    pub(super) const REPORT: Self = Self {
        script: include_str!("../../web/dist/report.js"),
        style: include_str!("../../web/dist/report.css"),
        script_hash: include_str!("../../web/dist/report.js.sha256"),
        style_hash: include_str!("../../web/dist/report.css.sha256"),
    };
    /// The page of many ranks or runs.
    pub(super) const RUNS: Self = Self {
        script: include_str!("../../web/dist/runs.js"),
        style: include_str!("../../web/dist/runs.css"),
        script_hash: include_str!("../../web/dist/runs.js.sha256"),
        style_hash: include_str!("../../web/dist/runs.css.sha256"),
    };
}

/// Compression level of the blobs, 0 to 10.
const LEVEL: u8 = 6;

/// A page in parts, so that its length is known before its text is made.
pub(super) struct Document {
    head: String,
    report: String,
    tail: String,
}

impl Document {
    /// A page without columns and data. `summary` is that of `replay` as text, `report` the exact
    /// JSON report.
    pub(super) fn new(bundle: Bundle, title: &str, summary: &str, report: &[u8]) -> Self {
        let Bundle { script, style, script_hash, style_hash } = bundle;
        let [title, summary] = [title, summary].map(escape_html);
        let head = format!(
            "<!doctype html>\n\
             <html lang=\"en\">\n\
             <head>\n\
             <meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src \
             'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; img-src data: blob:; base-uri 'none'; \
             form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title} - gpumemtrace</title>\n\
             <style>{style}</style>\n\
             </head>\n\
             <body>\n\
             <div id=\"app\"></div>\n\
             <noscript><p>This page needs JavaScript for its charts. The summary of the run:</p>\n\
             <pre>{summary}</pre></noscript>\n\
             <pre id=\"summary\" hidden>{summary}</pre>\n"
        );
        let tail = format!("<script>{script}</script>\n</body>\n</html>\n");
        Self { head, report: encode_blob("report", report), tail }
    }

    /// Length of the page with these blobs, in bytes.
    pub(super) fn len_with(&self, blobs: &PageBlobs) -> usize {
        self.parts(blobs).iter().map(|part| part.len()).sum()
    }

    /// The page as text; the same for the same parts.
    pub(super) fn to_html(&self, blobs: &PageBlobs) -> String {
        self.parts(blobs).concat()
    }

    fn parts<'a>(&'a self, blobs: &'a PageBlobs) -> [&'a str; 5] {
        [&self.head, &self.report, &blobs.columns, &blobs.data, &self.tail]
    }
}

/// The history of a page before its compression.
pub(super) struct RawBlobs {
    pub(super) columns: Vec<u8>,
    pub(super) data: Vec<u8>,
}

impl RawBlobs {
    pub(super) fn len(&self) -> usize {
        self.columns.len() + self.data.len()
    }

    /// Compresses the history, which takes most of the time that a page takes.
    pub(super) fn encode(&self) -> PageBlobs {
        PageBlobs { columns: encode_blob("columns", &self.columns), data: encode_blob("data", &self.data) }
    }
}

/// The encoded history of a page; empty in a page without one.
#[derive(Default)]
pub(super) struct PageBlobs {
    columns: String,
    data: String,
}

impl PageBlobs {
    pub(super) fn len(&self) -> usize {
        self.columns.len() + self.data.len()
    }
}

fn encode_blob(id: &str, bytes: &[u8]) -> String {
    let compressed = miniz_oxide::deflate::compress_to_vec(bytes, LEVEL);
    let mut text = format!("<script type=\"application/octet-stream\" id=\"{id}\">");
    STANDARD.encode_string(compressed, &mut text);
    text.push_str("</script>\n");
    text
}
