//! A GET or POST to a replica's admin address: one request, one bounded answer, one deadline.
//!
//! ```text
//!   url ──► connect ──► "GET /status HTTP/1.1, Connection: close" ──► status code + body
//! ```

use base64::{Engine as _, prelude::BASE64_STANDARD};
use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::OnceLock,
    time::{Duration, Instant},
};

/// An answer of the admin server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status code.
    pub code: u16,
    /// The body.
    pub body: Vec<u8>,
}

const BODY_MAX: u64 = 16 << 20;

static PASSWORD: OnceLock<String> = OnceLock::new();

/// All requests of this process carry this password from now on. The first one stays.
pub fn use_password(password: String) {
    let _ = PASSWORD.set(password);
}

/// The header that carries it, with its line end.
fn authorization(password: Option<&str>) -> String {
    password.map_or_else(String::new, |password| {
        let pair = BASE64_STANDARD.encode(format!("default:{password}"));
        format!("Authorization: Basic {pair}\r\n")
    })
}

/// `http://host:port` or `host:port` as `host:port`.
///
/// # Errors
/// With what is expected.
pub fn authority(url: &str) -> Result<String, String> {
    let rest = match url.split_once("://") {
        Some(("http", rest)) => rest,
        Some((scheme, _)) => return Err(format!("'{url}': {scheme}:// is not http://")),
        None => url,
    };
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(authority.to_owned())
        }
        _ => Err(format!(
            "'{url}' is not an address like http://127.0.0.1:7101"
        )),
    }
}

/// Opens a connection to the first address of `authority` that accepts one.
///
/// # Errors
/// The last address's.
pub fn connect(authority: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = in_words(error, timeout),
        }
    }
    Err(last)
}

/// Fetches `path`.
///
/// # Errors
/// When no server answers in time or the answer is not HTTP.
pub fn get(authority: &str, path: &str, timeout: Duration) -> io::Result<Answer> {
    request("GET", authority, path, timeout)
}

/// The same with a password of its own.
///
/// # Errors
/// As [`get`].
pub fn get_with(
    password: &str,
    authority: &str,
    path: &str,
    timeout: Duration,
) -> io::Result<Answer> {
    send(Some(password), "GET", authority, path, "", timeout)
}

/// Sends one request without a body.
///
/// # Errors
/// As [`get`].
pub fn request(method: &str, authority: &str, path: &str, timeout: Duration) -> io::Result<Answer> {
    request_with(method, authority, path, "", timeout)
}

/// Sends one request with this body, which is JSON.
///
/// # Errors
/// As [`get`].
pub fn request_with(
    method: &str,
    authority: &str,
    path: &str,
    body: &str,
    timeout: Duration,
) -> io::Result<Answer> {
    let password = PASSWORD.get().map(String::as_str);
    send(password, method, authority, path, body, timeout)
}

fn send(
    password: Option<&str>,
    method: &str,
    authority: &str,
    path: &str,
    body: &str,
    timeout: Duration,
) -> io::Result<Answer> {
    let deadline = Instant::now() + timeout;
    let mut stream = connect(authority, timeout)?;
    let authorization = authorization(password);
    let content = match body {
        "" => String::new(),
        _ => format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        ),
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n{authorization}\
         {content}\r\n{body}"
    );
    stream.set_write_timeout(Some(timeout))?;
    stream
        .write_all(request.as_bytes())
        .map_err(|error| in_words(error, timeout))?;
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(timed_out(timeout));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            Err(error) => return Err(in_words(error, timeout)),
        }
        if bytes.len() as u64 > BODY_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the answer is too long",
            ));
        }
    }
    parse(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer"))
}

fn timed_out(timeout: Duration) -> io::Error {
    let text = format!("no answer within {}", format_args!("{timeout:?}"));
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// A socket's time-out reads as "Resource temporarily unavailable", which tells a person nothing.
fn in_words(error: io::Error, timeout: Duration) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => timed_out(timeout),
        _ => error,
    }
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = head.lines();
    let code = lines
        .next()?
        .strip_prefix("HTTP/1.")?
        .split(' ')
        .nth(1)?
        .parse()
        .ok()?;
    let chunked = lines.any(|line| {
        let line = line.to_ascii_lowercase();
        line.starts_with("transfer-encoding:") && line.contains("chunked")
    });
    let body = &bytes[end + 4..];
    let body = if chunked {
        unchunked(body)?
    } else {
        body.to_vec()
    };
    Some(Answer { code, body })
}

fn unchunked(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&bytes[..end]).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        bytes = &bytes[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(bytes.get(..size)?);
        bytes = bytes.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_sent_as_basic_authorization() {
        assert_eq!(authorization(None), "");
        assert_eq!(
            authorization(Some("secret\r\n")),
            "Authorization: Basic ZGVmYXVsdDpzZWNyZXQNCg==\r\n"
        );
    }

    #[test]
    fn addresses() {
        assert_eq!(
            authority("http://127.0.0.1:7101/status"),
            Ok("127.0.0.1:7101".to_owned())
        );
        assert_eq!(authority("localhost:80"), Ok("localhost:80".to_owned()));
        assert!(authority("https://x:1").is_err());
        assert!(authority("nowhere").is_err());
        assert!(authority(":80").is_err());
    }

    #[test]
    fn silent_server_is_reported_as_a_timeout_in_words() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let error = get(&address, "/status", Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "no answer within 30ms");
    }

    #[test]
    fn answers() {
        let plain = parse(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        assert_eq!(
            plain,
            Answer {
                code: 200,
                body: b"ok".to_vec()
            }
        );
        let chunked =
            parse(b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
        assert_eq!(
            chunked.unwrap(),
            Answer {
                code: 503,
                body: b"abc".to_vec()
            }
        );
        assert_eq!(parse(b"+PONG\r\n"), None);
        assert_eq!(
            parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            None
        );
    }
}
