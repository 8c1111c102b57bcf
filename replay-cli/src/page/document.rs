//! The HTML document around the data.
//!
//! Names and paths of a trace are untrusted. They are in the page as compressed base64 only, except
//! for the title and the text for browsers without JavaScript, which are escaped. The content
//! security policy allows nothing but the page's own script and style, by their hashes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const SCRIPT: &str = include_str!("../../web/dist/report.js");
const STYLE: &str = include_str!("../../web/dist/report.css");
const SCRIPT_HASH: &str = include_str!("../../web/dist/report.js.sha256");
const STYLE_HASH: &str = include_str!("../../web/dist/report.css.sha256");
/// Compression level of the blobs, 0 to 10.
const LEVEL: u8 = 6;

/// The parts of a page.
pub(super) struct Document<'a> {
    pub title: &'a str,
    /// The summary of `replay` as text.
    pub summary: &'a str,
    /// The exact JSON report.
    pub report: &'a [u8],
    pub columns: &'a [u8],
    pub data: &'a [u8],
}

impl Document<'_> {
    /// The page as text; the same for the same parts.
    pub(super) fn to_html(&self) -> String {
        let [title, summary] = [self.title, self.summary].map(escape_html);
        let [report, columns, data] =
            [("report", self.report), ("columns", self.columns), ("data", self.data)].map(encode_blob);
        format!(
            "<!doctype html>\n\
             <html lang=\"en\">\n\
             <head>\n\
             <meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src \
             'sha256-{SCRIPT_HASH}'; style-src 'sha256-{STYLE_HASH}'; img-src data: blob:; base-uri 'none'; \
             form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title} - gpumemtrace</title>\n\
             <style>{STYLE}</style>\n\
             </head>\n\
             <body>\n\
             <div id=\"app\"></div>\n\
             <noscript><p>This page needs JavaScript for its charts. The summary of the run:</p>\n\
             <pre>{summary}</pre></noscript>\n\
             <pre id=\"summary\" hidden>{summary}</pre>\n\
             {report}{columns}{data}\
             <script>{SCRIPT}</script>\n\
             </body>\n\
             </html>\n"
        )
    }
}

fn encode_blob((id, bytes): (&str, &[u8])) -> String {
    let text = STANDARD.encode(miniz_oxide::deflate::compress_to_vec(bytes, LEVEL));
    format!("<script type=\"application/octet-stream\" id=\"{id}\">{text}</script>\n")
}

fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(char),
        }
    }
    escaped
}
