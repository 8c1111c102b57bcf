//! The answer to a request head. Only GET is served, bodies are never read, and each answer closes
//! its connection.

use std::net::IpAddr;

/// Longest request head, in bytes. Prometheus sends about 300.
pub(super) const MAX_HEAD_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 64;

/// What to do about the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The head is incomplete.
    Incomplete,
    /// The client wants the metrics.
    Metrics,
    /// The head and body of the answer, which needs no trace.
    Answer(Vec<u8>),
}

/// Decides what a request head asks for. With `is_local`, names in the header `Host` are refused
/// except for `localhost`: a web page could otherwise read the metrics through a name of its own.
pub(super) fn route(head: &[u8], is_local: bool) -> Route {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if head.len() < MAX_HEAD_BYTES => return Route::Incomplete,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return refusal("431 Request Header Fields Too Large", "The request head is too large.");
        }
        Err(_) => return refusal("400 Bad Request", "This is not an HTTP request."),
    }
    let host = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"));
    if is_local && host.is_some_and(|host| !is_address(host.value)) {
        return refusal("403 Forbidden", "Use localhost or an IP address as the host.");
    }
    let path = request.path.map(|path| path.split(['?', '#']).next().unwrap_or_default());
    match (request.method, path) {
        (Some("GET"), Some("/metrics")) => Route::Metrics,
        (Some("GET"), Some("/")) => {
            Route::Answer(answer("200 OK", "text/plain; charset=utf-8", "gpumemtrace: see /metrics\n"))
        }
        (Some("GET"), _) => refusal("404 Not Found", "The metrics are at /metrics."),
        _ => refusal("405 Method Not Allowed\r\nAllow: GET", "Use GET."),
    }
}

/// True for `localhost` and IP addresses, with or without a port.
fn is_address(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host.split(':').next(),
    };
    name.is_some_and(|name| name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok())
}

fn refusal(status: &str, sentence: &str) -> Route {
    Route::Answer(answer(status, "text/plain; charset=utf-8", &format!("{sentence}\n")))
}

/// A whole answer. `status` may be followed by further header lines.
pub(super) fn answer(status: &str, content_type: &str, body: &str) -> Vec<u8> {
    let bytes = body.len();
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\r\n"
    );
    answer.push_str(body);
    answer.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status(head: &str) -> u32 {
        match route(head.as_bytes(), true) {
            Route::Incomplete => 100,
            Route::Metrics => 200,
            Route::Answer(answer) => {
                let answer = String::from_utf8(answer).unwrap();
                let (head, body) = answer.split_once("\r\n\r\n").unwrap();
                assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{answer}");
                answer["HTTP/1.1 ".len()..][..3].parse().unwrap()
            }
        }
    }

    #[test]
    fn get_of_metrics_is_served_and_other_requests_are_refused() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\n\r\n"), 200);
        assert_eq!(status("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), 200);
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: [::1]:9464\r\n\r\n"), 200);
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1.evil.example:9464\r\n\r\n"), 403);
        assert_eq!(status("GET /metric HTTP/1.1\r\n\r\n"), 404);
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost"), 100);
        assert_eq!(status("\u{16}\u{3}\u{1}"), 400, "a TLS handshake");
        assert_eq!(status(&format!("GET /{}", "a".repeat(MAX_HEAD_BYTES))), 431);
        assert_eq!(status(&format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65))), 431);
    }

    proptest! {
        #[test]
        fn any_bytes_are_routed(bytes in proptest::collection::vec(any::<u8>(), 0..300), is_local: bool) {
            let head = [b"GET /metrics HTTP/1.1\r\n".as_slice(), &bytes].concat();
            prop_assert_ne!(route(&head, is_local), Route::Answer(Vec::new()));
            route(&bytes, is_local);
        }

        #[test]
        fn no_prefix_of_a_request_is_answered(end in 0usize..58) {
            let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/*\r\n\r\n";
            prop_assert_eq!(head.len(), 58);
            prop_assert_eq!(route(&head.as_bytes()[..end], true), Route::Incomplete);
        }
    }
}
