//! The connections of the admin HTTP server: how many, how long, and who may ask for what.
//!
//! ```text
//!   accept ──► too many? the oldest idle one goes ──► request ──► health? ───────────────► router
//!                                                       └── password right, if one is set ──┘
//! ```

use super::guesses::{Guesses, same};
use axum::{
    Router,
    body::Body,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use quintet_replica::Time;
use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

/// The head of a request must be here within this time of the connection or the last answer.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// When there is no descriptor for a connection, the next try comes after this.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How the admin HTTP server is set up.
#[derive(Clone, Debug)]
pub struct AdminOptions {
    /// The password for all requests but health checks; `None` accepts every request.
    pub password: Option<String>,
    /// The most connections; a further one closes the oldest idle one.
    pub connections_max: usize,
}

impl AdminOptions {
    /// As a replica's or proxy's configuration says.
    #[must_use]
    pub fn of(config: &crate::Config) -> Self {
        Self {
            password: config.password.clone(),
            connections_max: config.admin_connections_max,
        }
    }
}

/// The counters of accepted connections.
#[derive(Debug, Default)]
pub(super) struct DoorCounters {
    pub connections_dropped: AtomicU64,
    pub auth_failures: AtomicU64,
    pub auth_throttled: AtomicU64,
}

/// Lets requests in that carry the password.
#[derive(Debug)]
pub(super) struct Door {
    password: Option<String>,
    guesses: Mutex<Guesses>,
    began: Instant,
    pub counters: DoorCounters,
}

impl Door {
    pub fn new(password: Option<String>) -> Self {
        Self {
            password,
            guesses: Mutex::new(Guesses::new(crate::data::random())),
            began: Instant::now(),
            counters: DoorCounters::default(),
        }
    }

    /// Why a request is not answered, if so.
    fn refusal(&self, path: &str, headers: &HeaderMap, from: IpAddr) -> Option<Response> {
        let expected = self.password.as_ref()?;
        if matches!(path, "/livez" | "/healthz" | "/readyz") {
            return None;
        }
        let Some(given) = credentials(headers) else {
            return Some(unauthorized(
                "this needs the cluster's password: HTTP Basic with the user 'default', or Bearer\n",
            ));
        };
        let now = Time(self.began.elapsed().as_nanos() as u64);
        let mut guesses = self.guesses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(wait) = guesses.check(from, now) {
            self.counters.auth_throttled.fetch_add(1, Relaxed);
            let seconds = wait.as_secs_f64().ceil() as u64;
            let retry = [(header::RETRY_AFTER, seconds.to_string())];
            let text = "too many wrong passwords from this address\n";
            return Some((StatusCode::TOO_MANY_REQUESTS, retry, text).into_response());
        }
        if same(expected.as_bytes(), &given) {
            return None;
        }
        guesses.failed(from, now);
        self.counters.auth_failures.fetch_add(1, Relaxed);
        Some(unauthorized("wrong password\n"))
    }
}

fn unauthorized(text: &'static str) -> Response {
    let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"quintet\"")];
    (StatusCode::UNAUTHORIZED, ask, text).into_response()
}

/// The password that a request carries.
fn credentials(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let space = value.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = (&value[..space], value[space + 1..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(rest.to_vec());
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let pair = BASE64_STANDARD.decode(rest).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    let known = matches!(&pair[..colon], b"" | b"default");
    known.then(|| pair[colon + 1..].to_vec())
}

struct Open {
    task: AbortHandle,
    /// A request is being answered.
    working: Arc<AtomicBool>,
}

/// Serves connections until it is dropped.
pub(super) async fn serve(listener: TcpListener, router: Router, door: Arc<Door>, most: usize) {
    let mut open: VecDeque<Open> = VecDeque::new();
    let mut complained = false;
    loop {
        let (stream, from) = match listener.accept().await {
            Ok((stream, from)) => (stream, from.ip()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                if !complained {
                    tracing::warn!(%error, "cannot accept admin connections; tried again");
                }
                complained = true;
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        complained = false;
        open.retain(|one| !one.task.is_finished());
        if open.len() >= most {
            door.counters.connections_dropped.fetch_add(1, Relaxed);
            let idle = open.iter().position(|one| !one.working.load(Relaxed));
            match idle.and_then(|idle| open.remove(idle)) {
                Some(idle) => idle.task.abort(),
                // All of them wait for the replica: this one is not answered.
                None => continue,
            }
        }
        let working = Arc::new(AtomicBool::new(false));
        let connection = connection(
            stream,
            from,
            router.clone(),
            Arc::clone(&door),
            Arc::clone(&working),
        );
        let task = tokio::spawn(connection).abort_handle();
        open.push_back(Open { task, working });
    }
}

async fn connection(
    stream: TcpStream,
    from: IpAddr,
    router: Router,
    door: Arc<Door>,
    working: Arc<AtomicBool>,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| {
        let (router, working) = (&router, &working);
        let refusal = door.refusal(request.uri().path(), request.headers(), from);
        async move {
            if let Some(refusal) = refusal {
                return Ok(refusal);
            }
            working.store(true, Relaxed);
            let answer = hyper::service::Service::call(router, request.map(Body::new)).await;
            working.store(false, Relaxed);
            answer
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "an admin connection has ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn given(value: &str) -> Option<Vec<u8>> {
        let mut headers = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(header::AUTHORIZATION, value);
        }
        credentials(&headers)
    }

    #[test]
    fn guesses_are_slowed_when_they_are_many() {
        let door = Door::new(Some("secret".to_owned()));
        let code = |path: &str, password: &str, from: [u8; 4]| {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_str(&format!("Bearer {password}")) {
                headers.insert(header::AUTHORIZATION, value);
            }
            let refusal = door.refusal(path, &headers, IpAddr::from(from));
            refusal.map(|response| response.status().as_u16())
        };
        let one = [10, 0, 0, 1];
        for _ in 0..10 {
            assert_eq!(code("/status", "wrong", one), Some(401));
        }
        assert_eq!(code("/status", "wrong", one), Some(429));
        assert_eq!(code("/status", "secret", one), Some(429));
        assert_eq!(code("/livez", "wrong", one), None);
        assert_eq!(code("/status", "secret", [10, 0, 0, 2]), None);
        assert_eq!(door.counters.auth_throttled.load(Relaxed), 2);
    }

    #[test]
    fn passwords_are_read_from_basic_and_bearer() {
        let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
        assert_eq!(given("Bearer secret").as_deref(), Some(&b"secret"[..]));
        assert_eq!(given(&basic("default:a:b")).as_deref(), Some(&b"a:b"[..]));
        assert_eq!(given(&basic(":secret")).as_deref(), Some(&b"secret"[..]));
        assert_eq!(given(&basic("root:secret")), None);
        for wrong in ["", "Basic", "Basic ???", "Digest x", "Basic c2VjcmV0"] {
            assert_eq!(given(wrong), None, "{wrong}");
        }
    }
}
