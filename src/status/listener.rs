//! `/health` and `/metrics` over HTTP/1.1, for supervisors and Prometheus: `satgres run --listen`.
//!
//! In: an address, the board. Out: answers, from the first moment of the process to its last, whatever the database, the disk
//! and the load do: a thread and runtime of its own, which read what others have left and wait for nobody. A client is bounded
//! in time and bytes, all together in number: the oldest connection gives way. There is no authentication, and nothing to
//! change or to learn that `satgres status` does not tell.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::{AbortHandle, JoinHandle};
use tracing::{debug, info, warn};

use super::{Board, health::Health, looks::Looks, metrics, state::now};
use crate::config::Settings;

/// Connections at once.
const CONNECTIONS_MAX: usize = 64;
/// Longest head of a request, bytes; hyper takes no less.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// How long a request may take to arrive.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a connection may last, its answer included.
const CONNECTION_WAIT_MAX: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why nobody can listen; nothing was changed.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address}\n  help: is another program, or another `satgres run`, listening there? Give another --listen \
     IP:PORT; port 0 takes any that is free"
)]
pub struct ListenError {
    /// The address.
    address: SocketAddr,
    /// What the system said.
    source: io::Error,
}

/// A bound address, and who answers there; ends when it is dropped.
#[derive(Debug)]
pub struct Listener {
    looking: JoinHandle<()>,
    serving: AbortHandle,
}

impl Listener {
    /// Binds the settings' address, if they name one, and answers from now on; must be called on a runtime.
    ///
    /// # Errors
    /// [`ListenError`]: the user must choose another address.
    pub fn start(settings: &Settings, board: &Board) -> Result<Option<Listener>, ListenError> {
        let Some(asked) = settings.listen else { return Ok(None) };
        let failed = |source| ListenError { address: asked, source };
        let listener = TcpListener::bind(asked).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        board.listening(address);
        let answers = Answers { board: board.clone(), looks: Looks::default(), started_at: now() };
        let looking = tokio::spawn(answers.looks.clone().keep(settings.clone(), board.clone()));
        let serving = {
            let _inside = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
            runtime.spawn(serve(listener, answers))
        };
        let handle = serving.abort_handle();
        let thread = std::thread::Builder::new().name("listen".to_owned());
        // A task that was aborted ends its thread too.
        thread.spawn(move || drop(runtime.block_on(serving))).map_err(failed)?;
        info!(%address, "answering /health and /metrics");
        if !address.ip().is_loopback() {
            warn!(%address, "--listen is no loopback address: whoever reaches it can read /health and /metrics");
        }
        Ok(Some(Listener { looking, serving: handle }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.serving.abort();
        self.looking.abort();
    }
}

/// Accepts connections for as long as the task lives.
async fn serve(listener: tokio::net::TcpListener, answers: Answers) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() == CONNECTIONS_MAX
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let answers = answers.clone();
        let connection = tokio::spawn(async move {
            let service = service_fn(move |request| {
                let answer = answers.answer(&request);
                async { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_WAIT_MAX)
                .max_buf_size(HEAD_BYTES_MAX)
                .max_headers(HEADERS_MAX)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever was too slow or spoke no HTTP has been told so, or hung up.
            match tokio::time::timeout(CONNECTION_WAIT_MAX, connection).await {
                Ok(Err(error)) => debug!(%error, "a client of /health or /metrics failed"),
                Err(_) => debug!("a client of /health or /metrics was too slow"),
                Ok(Ok(())) => {}
            }
        });
        open.push_back(connection.abort_handle());
    }
}

/// What is answered.
#[derive(Debug, Clone)]
struct Answers {
    board: Board,
    looks: Looks,
    started_at: f64,
}

impl Answers {
    /// The body of a request is left unread, and the connection is closed after the answer.
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let is_known = matches!(request.uri().path(), "/health" | "/metrics");
        if !is_known {
            return text(StatusCode::NOT_FOUND, "there are /health and /metrics\n");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        let health = Health::new(self.board.told(), self.looks.newest(), self.started_at, now());
        if request.uri().path() == "/metrics" {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            return response(StatusCode::OK, kind, metrics::render(&health));
        }
        let status = if health.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut body = serde_json::to_string(&health).expect("it has text keys only");
        body.push('\n');
        response(status, "application/json", body)
    }
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    response(status, "text/plain; charset=utf-8", body.to_owned())
}

fn response(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
