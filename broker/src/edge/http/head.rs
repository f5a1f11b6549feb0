//! The head of a request, read and checked before an HTTP library sees it.
//!
//! A reader that is stricter than the library behind it leaves no text that two readers take in
//! two ways: line ends, folds, lengths and the host are looked at here, and what is in doubt is
//! refused. Knows no routes.

use bytes::BytesMut;
use reeve_protocol::{Code, Fault};

use super::answer::Refusal;

/// Bytes of a head, at most.
pub const HEAD_MAX: usize = 16 << 10;
/// Bytes of a request target, at most.
pub const TARGET_MAX: usize = 8 << 10;
/// Header lines, at most.
pub const HEADERS_MAX: usize = 96;
/// Bytes of a body, at most.
pub const BODY_MAX: u64 = 1 << 20;
/// Bytes of the longest method that is known.
const METHOD_MAX: usize = 16;

/// Looks at what has come; `true` once a whole head is there and good.
///
/// # Errors
///
/// A refusal, as soon as it is certain.
pub fn check(seen: &BytesMut) -> Result<bool, Refusal> {
    first_byte(seen)?;
    line_ends(seen)?;
    let end = memchr_end(seen);
    request_line_so_far(seen)?;
    let Some(end) = end else {
        if seen.len() > HEAD_MAX {
            return Err(too_long());
        }
        return Ok(false);
    };
    if end > HEAD_MAX {
        return Err(too_long());
    }
    let head = &seen[..end];
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.trim_ascii_end_cr());
    let line = RequestLine::parse(lines.next().unwrap_or_default())?;
    let mut fields = Fields::default();
    for line in lines.take_while(|line| !line.is_empty()) {
        fields.take(line)?;
    }
    fields.finish(&line)?;
    Ok(true)
}

trait TrimCr {
    fn trim_ascii_end_cr(&self) -> &[u8];
}

impl TrimCr for [u8] {
    fn trim_ascii_end_cr(&self) -> &[u8] {
        self.strip_suffix(b"\r").unwrap_or(self)
    }
}

fn memchr_end(seen: &[u8]) -> Option<usize> {
    seen.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

fn bad(reason: &str, message: impl Into<String>) -> Refusal {
    Fault::new(Code::InvalidRequest, message).because(reason).into()
}

fn too_long() -> Refusal {
    let fault =
        Fault::new(Code::TooLarge, format!("a request's head has at most {HEAD_MAX} bytes"));
    Refusal::from(fault.because("head_too_large")).status(431)
}

fn first_byte(seen: &[u8]) -> Result<(), Refusal> {
    match seen.first() {
        Some(byte) if !byte.is_ascii_alphabetic() => {
            Err(bad("no_http", "this is not HTTP/1.1; the address begins with http://"))
        }
        _ => Ok(()),
    }
}

/// A line ends with CR LF, and neither stands alone.
fn line_ends(seen: &[u8]) -> Result<(), Refusal> {
    let end = memchr_end(seen).unwrap_or(seen.len());
    let head = &seen[..end];
    for (at, byte) in head.iter().enumerate() {
        let good = match byte {
            b'\n' => at > 0 && head[at - 1] == b'\r',
            b'\r' => head.get(at + 1).is_none_or(|next| *next == b'\n'),
            0 => false,
            _ => true,
        };
        if !good {
            return Err(bad("line_end", "a header line ends with CR LF, and neither stands alone"));
        }
    }
    Ok(())
}

/// Bounds the target before the line is whole.
fn request_line_so_far(seen: &[u8]) -> Result<(), Refusal> {
    let line = seen.iter().position(|byte| *byte == b'\r').unwrap_or(seen.len());
    if line > METHOD_MAX + TARGET_MAX + 10 {
        let message = format!("a request target has at most {TARGET_MAX} bytes");
        let fault = Fault::new(Code::TooLarge, message).because("target_too_long");
        return Err(Refusal::from(fault).status(414));
    }
    Ok(())
}

struct RequestLine<'h> {
    target: &'h str,
    old: bool,
}

impl<'h> RequestLine<'h> {
    fn parse(line: &'h [u8]) -> Result<Self, Refusal> {
        let mut parts = line.split(|byte| *byte == b' ');
        let (method, target, version) = (parts.next(), parts.next(), parts.next());
        let (Some(method), Some(target), Some(version), None) =
            (method, target, version, parts.next())
        else {
            return Err(bad("request_line", "a request line is METHOD TARGET HTTP/1.1"));
        };
        if method.is_empty() || method.len() > METHOD_MAX || !method.iter().all(is_token) {
            return Err(bad("request_line", "the method is no word"));
        }
        let old = match version {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            _ if version.starts_with(b"HTTP/") => {
                let fault = Fault::new(Code::Unsupported, "only HTTP/1.1 is spoken here");
                return Err(Refusal::from(fault.because("http_version")).status(505));
            }
            _ => return Err(bad("request_line", "a request line ends with HTTP/1.1")),
        };
        if target.len() > TARGET_MAX {
            let message = format!("a request target has at most {TARGET_MAX} bytes");
            let fault = Fault::new(Code::TooLarge, message).because("target_too_long");
            return Err(Refusal::from(fault).status(414));
        }
        if method == b"CONNECT" || method == b"TRACE" {
            let fault = Fault::new(Code::MethodNotAllowed, "this method is not taken anywhere");
            return Err(Refusal::from(fault).allow("GET, HEAD, POST"));
        }
        let printable = target.iter().all(|byte| (0x21..=0x7e).contains(byte) && *byte != b'#');
        let target = std::str::from_utf8(target).ok().filter(|_| printable);
        let target = target.ok_or_else(|| {
            bad("target", "a request target is printable ASCII; escape the rest with %")
        })?;
        Ok(Self { target, old })
    }

    /// Returns the authority of a target in absolute form.
    fn authority(&self) -> Result<Option<&'h str>, Refusal> {
        if self.target.starts_with('/') || self.target == "*" {
            return Ok(None);
        }
        let rest = self.target.strip_prefix("http://");
        let rest = rest.ok_or_else(|| bad("target", "a request target begins with /"))?;
        Ok(Some(rest.split(['/', '?']).next().unwrap_or_default()))
    }
}

fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// What of the header lines matters before anything is read.
#[derive(Default)]
struct Fields {
    count: usize,
    hosts: Vec<String>,
    lengths: Vec<String>,
    codings: Vec<String>,
}

impl Fields {
    fn take(&mut self, line: &[u8]) -> Result<(), Refusal> {
        self.count += 1;
        if self.count > HEADERS_MAX {
            let fault = Fault::new(
                Code::TooLarge,
                format!("a request has at most {HEADERS_MAX} header lines"),
            );
            return Err(Refusal::from(fault.because("too_many_headers")).status(431));
        }
        if line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
            return Err(bad("folded_header", "a header line does not go on in the next one"));
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = match colon {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => return Err(bad("header", "a header line is NAME: VALUE")),
        };
        if name.is_empty() || !name.iter().all(is_token) {
            return Err(bad("header", "a header's name is one word, directly before its colon"));
        }
        if value.iter().any(|byte| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f) {
            return Err(bad("header", "a header's value has no control characters"));
        }
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let free = ["cookie", "user-agent", "referer", "accept-language"].contains(&name.as_str());
        if !value.is_ascii() && !free {
            return Err(bad("header", "a header's value is ASCII"));
        }
        let value = String::from_utf8_lossy(value).trim().to_owned();
        match name.as_str() {
            "host" => self.hosts.push(value),
            "content-length" => self.lengths.push(value),
            "transfer-encoding" => self.codings.push(value),
            _ => {}
        }
        Ok(())
    }

    fn finish(&self, line: &RequestLine<'_>) -> Result<(), Refusal> {
        let [host] = &self.hosts[..] else {
            return Err(bad("host", "a request has exactly one Host header"));
        };
        if host.is_empty() {
            return Err(bad("host", "the Host header is empty"));
        }
        if line.authority()?.is_some_and(|authority| authority != host) {
            return Err(bad("target", "the request target names another host than Host does"));
        }
        if !self.lengths.is_empty() && !self.codings.is_empty() {
            return Err(bad("framing", "Content-Length and Transfer-Encoding exclude each other"));
        }
        if self.codings.len() > 1
            || self.codings.iter().any(|coding| !coding.eq_ignore_ascii_case("chunked"))
            || (line.old && !self.codings.is_empty())
        {
            return Err(bad("framing", "the only Transfer-Encoding is chunked, of HTTP/1.1"));
        }
        self.length()
    }

    fn length(&self) -> Result<(), Refusal> {
        let length = match &self.lengths[..] {
            [] => return Ok(()),
            [length] => length,
            _ => return Err(bad("framing", "Content-Length stands twice")),
        };
        let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        match length.parse::<u64>() {
            Ok(length) if digits && length <= BODY_MAX => Ok(()),
            Ok(_) if digits => Err(body_too_large().into()),
            _ => Err(bad("framing", "Content-Length is no number")),
        }
    }
}

/// Says that a body is beyond the bound.
pub fn body_too_large() -> Fault {
    Fault::new(Code::TooLarge, format!("a request's body has at most {BODY_MAX} bytes"))
        .because("body_too_large")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> u16 {
        match check(&BytesMut::from(head)) {
            Ok(true) => 200,
            Ok(false) => 0,
            Err(refusal) => refusal.code(),
        }
    }

    #[test]
    fn a_head_is_taken_once_it_is_whole() {
        let head = "GET /a?b=%20c HTTP/1.1\r\nHost: localhost:1\r\nX: \r\n\r\n";
        for cut in 1..head.len() {
            assert_eq!(status(&head[..cut]), 0, "{cut}");
        }
        assert_eq!(status(head), 200);
        assert_eq!(status(&format!("{head}body\nwith lines")), 200);
    }

    #[test]
    fn what_is_in_doubt_is_refused() {
        let host = "Host: localhost:1\r\n";
        for (head, expected) in [
            ("GET / HTTP/1.1\nHost: a\n\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.0\r\n\r\n".to_owned(), 400),
            (format!("GET / HTTP/1.1\r\n{host}{host}\r\n"), 400),
            ("GET / HTTP/1.1\r\nHost:\r\n\r\n".to_owned(), 400),
            (format!("GET http://evil/ HTTP/1.1\r\n{host}\r\n"), 400),
            (format!("GET http://localhost:1/ HTTP/1.1\r\n{host}\r\n"), 200),
            (format!("GET / HTTP/1.1\r\n{host}A: 1\r\n b\r\n\r\n"), 400),
            (format!("GET / HTTP/1.1\r\n{host}A : 1\r\n\r\n"), 400),
            (format!("GET / HTTP/2.0\r\n{host}\r\n"), 505),
            (format!("GET  / HTTP/1.1\r\n{host}\r\n"), 400),
            (format!("GET /\u{e9} HTTP/1.1\r\n{host}\r\n"), 400),
            ("CONNECT evil:443 HTTP/1.1\r\n".to_owned() + host + "\r\n", 405),
            (format!("POST / HTTP/1.1\r\n{host}Content-Length: 1048576\r\n\r\n"), 200),
            (format!("POST / HTTP/1.1\r\n{host}Content-Length: 1048577\r\n\r\n"), 413),
            (format!("POST / HTTP/1.1\r\n{host}Content-Length: +1\r\n\r\n"), 400),
            (format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: Chunked\r\n\r\n"), 200),
            (format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: gzip, chunked\r\n\r\n"), 400),
            (format!("GET / HTTP/1.1\r\n{host}{}\r\n", "A: 1\r\n".repeat(95)), 200),
            (format!("GET / HTTP/1.1\r\n{host}{}\r\n", "A: 1\r\n".repeat(96)), 431),
            (format!("GET /{} HTTP/1.1\r\n{host}\r\n", "a".repeat(TARGET_MAX - 1)), 200),
            (format!("GET /{} HTTP/1.1\r\n{host}\r\n", "a".repeat(TARGET_MAX)), 414),
            (format!("GET /{}", "a".repeat(TARGET_MAX + 100)), 414),
            (format!("GET / HTTP/1.1\r\n{host}A: {}", "a".repeat(HEAD_MAX)), 431),
            ("\u{16}\u{3}\u{1}".to_owned(), 400),
        ] {
            assert_eq!(status(&head), expected, "{}", &head[..head.len().min(80)]);
        }
    }
}
