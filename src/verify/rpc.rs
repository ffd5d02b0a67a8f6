//! Questions to a Bitcoin Core over its JSON-RPC: who may ask, how long is waited, what its refusals mean.
//!
//! In: a URL with user and password, or a cookie file. Out: the node's answers. Called by the check against the node. HTTP/1.1
//! on a connection of its own for each question; the cookie is read anew for each, since a node writes another one at every
//! start. It must never show a password, and never read more than an answer can be.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tracing::info;

use crate::{config, network::Network, percent};

/// Longest time until a connection stands.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest time that a node that warms up, or has no room for another question, is waited for.
const WARM_UP_WAIT_MAX: Duration = Duration::from_secs(60 * 60);
/// Pause before it is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How often a cookie that is refused is read again: the node may just be writing another one.
const COOKIE_TRIES_MAX: u32 = 4;
/// Between two words about a wait.
const TELL_EVERY: Duration = Duration::from_secs(30);
/// Silence after which the system asks the other side whether it is there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
/// Longest answer, bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The node's code for "not yet" (`RPC_IN_WARMUP` in Bitcoin Core).
const IN_WARM_UP: i64 = -28;

/// Why a node does not answer. Nothing was changed: the same command may be given again.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// Nobody listens, or the host is not known.
    #[error(
        "cannot reach the node's RPC at {address}\n  help: is the node running with server=1, and is this its RPC port ({port} on {network}), not its P2P port?"
    )]
    Connect {
        /// Host and port.
        address: String,
        /// The network's usual port.
        port: u16,
        /// The network.
        network: Network,
        /// What the system said.
        source: io::Error,
    },
    /// The cookie file cannot be used.
    #[error("cannot read the cookie file {}\n  help: a running node keeps it as .cookie in its data directory, or below that in regtest/, signet/, testnet3/, testnet4/", path.display())]
    Cookie {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// 401.
    #[error(
        "the node at {address} refuses {login} (401)\n  help: user and password are its rpcauth or rpcuser and rpcpassword; without these, give --cookie FILE: .cookie in its data directory"
    )]
    Unauthorized {
        /// Host and port.
        address: String,
        /// Who was refused.
        login: String,
    },
    /// 403.
    #[error(
        "the node at {address} lets nobody in from here (403)\n  help: its rpcallowip says from where it may be asked"
    )]
    Forbidden {
        /// Host and port.
        address: String,
    },
    /// It has warmed up, or been busy, for too long.
    #[error("the node at {address} is still not ready after {seconds} s: {said}")]
    NotReady {
        /// Host and port.
        address: String,
        /// How long was waited.
        seconds: u64,
        /// What it said last.
        said: String,
    },
    /// It refuses the question.
    #[error("the node at {address} refuses {method}: {message} (code {code})")]
    Refused {
        /// Host and port.
        address: String,
        /// The question.
        method: &'static str,
        /// Its code.
        code: i64,
        /// Its words.
        message: String,
    },
    /// The connection broke, or the other side speaks no HTTP.
    #[error(
        "the connection to {address} broke while it was asked for {method}: {reason}\n  help: is this the node's RPC port, not its P2P port? Has it been stopped?"
    )]
    Broken {
        /// Host and port.
        address: String,
        /// The question.
        method: &'static str,
        /// What happened.
        reason: String,
    },
    /// The answer is no JSON-RPC.
    #[error("{address} answers {method} with what is no JSON-RPC ({status}): is that a Bitcoin Core?")]
    NoJsonRpc {
        /// Host and port.
        address: String,
        /// The question.
        method: &'static str,
        /// The status of the answer.
        status: StatusCode,
    },
    /// Nothing came in time.
    #[error("the node at {address} did not answer {method} within {seconds} s")]
    TimedOut {
        /// Host and port.
        address: String,
        /// The question.
        method: &'static str,
        /// How long was waited.
        seconds: u64,
    },
}

/// A node's RPC, and who asks.
#[derive(Clone)]
pub struct NodeRpc {
    host: String,
    port: Option<u16>,
    login: Login,
}

#[derive(Clone)]
enum Login {
    Password { user: String, password: String },
    Cookie(PathBuf),
}

impl fmt::Debug for NodeRpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeRpc").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

impl NodeRpc {
    /// Understands `http://USER:PASSWORD@HOST:PORT`, user and password percent-encoded; with a cookie file they are left out.
    ///
    /// # Errors
    /// [`config::Error::NodeUrl`], which shows nothing of the URL: it may hold a password.
    pub fn parse(url: &str, cookie: Option<&Path>) -> Result<NodeRpc, config::Error> {
        NodeRpc::understand(url, cookie).map_err(|reason| config::Error::NodeUrl { reason })
    }

    fn understand(url: &str, cookie: Option<&Path>) -> Result<NodeRpc, &'static str> {
        let rest = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err("it must begin with http://; for a node elsewhere use a tunnel"),
            None => url,
        };
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, rest),
        };
        let place = rest.strip_suffix('/').unwrap_or(rest);
        if place.is_empty() || place.contains(['/', '?', '#', ' ']) {
            return Err("HOST:PORT must follow, and nothing after it");
        }
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !host.ends_with(':') && !port.ends_with(']') => (
                host,
                Some(
                    port.parse::<u16>()
                        .ok()
                        .filter(|&port| port > 0)
                        .ok_or("its port is no number from 1 to 65535")?,
                ),
            ),
            _ => (place, None),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if bare.is_none() && host.contains(':') {
            return Err("an IPv6 address stands in brackets");
        }
        let host = bare.unwrap_or(host).to_owned();
        let login = match (user, cookie) {
            (Some(_), Some(_)) => {
                return Err("it names a user, and there is a cookie file too: give one of them");
            }
            (None, None) => return Err("USER:PASSWORD@ is missing; without it, give --cookie FILE"),
            (None, Some(path)) => Login::Cookie(path.to_owned()),
            (Some(user), None) => {
                let (user, password) =
                    user.split_once(':').ok_or("the password is missing: USER:PASSWORD@HOST")?;
                let decode = |text| {
                    percent::decode(text)
                        .map_err(|_| "a % in user or password is written %25, a @ %40, a : %3A")
                };
                Login::Password { user: decode(user)?, password: decode(password)? }
            }
        };
        Ok(NodeRpc { host, port, login })
    }

    /// Asks; waits for a node that warms up or is busy.
    ///
    /// # Errors
    /// [`RpcError`]; `wait_max` is how long one answer may take.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        network: Network,
        method: &'static str,
        params: Value,
        wait_max: Duration,
    ) -> Result<T, RpcError> {
        let (began, mut told, mut refused) = (Instant::now(), None::<Instant>, 0);
        loop {
            let said = match self.ask(network, method, &params, wait_max).await {
                Ok(Answer::Result(result)) => {
                    let address = self.address(network);
                    let failed = |_| RpcError::NoJsonRpc { address, method, status: StatusCode::OK };
                    return serde_json::from_str(result.get()).map_err(failed);
                }
                Ok(Answer::NotYet(said)) => said,
                Err(RpcError::Unauthorized { .. })
                    if matches!(self.login, Login::Cookie(_)) && refused + 1 < COOKIE_TRIES_MAX =>
                {
                    refused += 1;
                    sleep(ASK_AGAIN_AFTER).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if began.elapsed() > WARM_UP_WAIT_MAX {
                let (address, seconds) = (self.address(network), began.elapsed().as_secs());
                return Err(RpcError::NotReady { address, seconds, said });
            }
            if told.is_none_or(|at| at.elapsed() > TELL_EVERY) {
                told = Some(Instant::now());
                info!(said, "waiting for the node");
            }
            sleep(ASK_AGAIN_AFTER).await;
        }
    }

    async fn ask(
        &self,
        network: Network,
        method: &'static str,
        params: &Value,
        wait_max: Duration,
    ) -> Result<Answer, RpcError> {
        let address = self.address(network);
        let (login, authorization) = self.authorization()?;
        let port = self.port(network);
        let connecting = timeout(CONNECT_WAIT_MAX, TcpStream::connect((self.host.as_str(), port))).await;
        let connected = connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let usual = rpc_port(network);
        let failed = |source| RpcError::Connect { address: address.clone(), port: usual, network, source };
        let stream = connected.map_err(failed)?;
        // An answer may take an hour: a host that has gone must show meanwhile. It works without, too.
        let _ = SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_AFTER));
        let broken = |error: &dyn fmt::Display| RpcError::Broken {
            address: address.clone(),
            method,
            reason: error.to_string(),
        };
        let body = json!({"jsonrpc": "1.0", "id": "satgres", "method": method, "params": params}).to_string();
        let request = Request::post("/")
            .header(HOST, &address)
            .header(AUTHORIZATION, authorization)
            .header(CONTENT_TYPE, "application/json")
            .header(CONNECTION, "close")
            .body(Full::<Bytes>::from(body))
            .expect("its headers are ASCII: base64, and an address that was resolved");
        let exchange = async {
            let (mut sender, connection) =
                http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
            // How it ends shows in what the sender says.
            tokio::spawn(async move { drop(connection.await) });
            let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            Ok::<_, RpcError>((status, body.map_err(|error| broken(&error))?.to_bytes()))
        };
        let seconds = wait_max.as_secs();
        let timed_out = |_| RpcError::TimedOut { address: address.clone(), method, seconds };
        let (status, body) = timeout(wait_max, exchange).await.map_err(timed_out)??;
        match status {
            StatusCode::UNAUTHORIZED => return Err(RpcError::Unauthorized { address, login }),
            StatusCode::FORBIDDEN => return Err(RpcError::Forbidden { address }),
            StatusCode::SERVICE_UNAVAILABLE => {
                return Ok(Answer::NotYet(String::from_utf8_lossy(&body).trim().to_owned()));
            }
            _ => {}
        }
        match serde_json::from_slice(&body) {
            Ok(Reply { error: Some(Failure { code: IN_WARM_UP, message }), .. }) => {
                Ok(Answer::NotYet(message))
            }
            Ok(Reply { error: Some(Failure { code, message }), .. }) => {
                Err(RpcError::Refused { address, method, code, message })
            }
            Ok(Reply { result: Some(result), .. }) => Ok(Answer::Result(result)),
            _ => Err(RpcError::NoJsonRpc { address, method, status }),
        }
    }

    /// Who asks, for people, and the header (RFC 7617).
    fn authorization(&self) -> Result<(String, String), RpcError> {
        let (login, pair) = match &self.login {
            Login::Password { user, password } => {
                (format!("user {user:?} with this password"), format!("{user}:{password}"))
            }
            Login::Cookie(path) => {
                let failed = |source| RpcError::Cookie { path: path.clone(), source };
                let text = fs::read_to_string(path).map_err(failed)?;
                (format!("the cookie of {}", path.display()), text.trim().to_owned())
            }
        };
        Ok((login, format!("Basic {}", BASE64_STANDARD.encode(pair))))
    }

    fn port(&self, network: Network) -> u16 {
        self.port.unwrap_or_else(|| rpc_port(network))
    }

    fn address(&self, network: Network) -> String {
        let port = self.port(network);
        if self.host.contains(':') {
            format!("[{}]:{port}", self.host)
        } else {
            format!("{}:{port}", self.host)
        }
    }
}

enum Answer {
    Result(Box<RawValue>),
    NotYet(String),
}

#[derive(Deserialize)]
struct Reply {
    result: Option<Box<RawValue>>,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Failure {
    code: i64,
    message: String,
}

/// Bitcoin Core's usual port (`src/chainparamsbase.cpp`).
fn rpc_port(network: Network) -> u16 {
    match network {
        Network::Main => 8332,
        Network::Test => 18332,
        Network::Testnet4 => 48332,
        Network::Signet => 38332,
        Network::Regtest => 18443,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(url: &str) -> (String, u16, String) {
        let rpc = NodeRpc::parse(url, None).unwrap();
        let Login::Password { user, password } = &rpc.login else { panic!("no password") };
        (rpc.host.clone(), rpc.port(Network::Regtest), format!("{user} {password}"))
    }

    #[test]
    fn a_url_names_host_port_user_and_password() {
        let expected = |host: &str, port, login: &str| (host.to_owned(), port, login.to_owned());
        assert_eq!(parts("http://me:secret@127.0.0.1:8332"), expected("127.0.0.1", 8332, "me secret"));
        assert_eq!(parts("http://me:p%40ss%3A@node/"), expected("node", 18443, "me p@ss:"));
        assert_eq!(parts("me:a:b@[::1]:1"), expected("::1", 1, "me a:b"));
        assert_eq!(parts("HTTP://me:@[fe80::1]"), expected("fe80::1", 18443, "me "));
        let cookie = NodeRpc::parse("http://node:1", Some(Path::new("/c"))).unwrap();
        assert_eq!(cookie.address(Network::Main), "node:1");
    }

    #[test]
    fn a_wrong_url_is_refused_without_a_word_of_it() {
        for url in [
            "",
            "http://",
            "https://me:hush@node",
            "http://me@node",
            "http://node:8332",
            "http://me:hush@node:0",
            "http://me:hush@node:99999",
            "http://me:hush@node/wallet/x",
            "http://me:hush@::1",
            "http://me:hu%sh@node",
        ] {
            let error = NodeRpc::parse(url, None).unwrap_err().to_string();
            assert!(error.starts_with("--node: no valid URL: ") && !error.contains("hu"), "{url}: {error}");
        }
        let both = NodeRpc::parse("http://me:hush@node", Some(Path::new("/c"))).unwrap_err().to_string();
        assert!(both.contains("give one of them"), "{both}");
        let debug = format!("{:?}", NodeRpc::parse("http://me:hush@node", None).unwrap());
        assert!(!debug.contains("hush"), "{debug}");
    }
}
