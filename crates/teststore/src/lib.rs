//! Object stores for tests: a server that speaks S3, with one bucket in memory, behind a port of this host; and a layer above any
//! store by which requests fail and hosts die ([`faults`]); and what other layers are made of ([`way`]).
//!
//! Signatures, ranges, conditions (`If-Match`, `If-None-Match`), listings by pages and error answers are those of the protocol
//! (`s3s`). Besides it does what stores do to their users: it is slow, asks for less, breaks connections, before or after the work was done,
//! and lists late. A test says what the next requests meet ([`Server::inject`]); a seed says it of that layer.

#![allow(clippy::expect_used)]

pub mod faults;
mod memory;
mod random;
pub mod way;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

pub use memory::Conditions;
use memory::{Keys, Memory, Service};
pub use random::Random;

/// The one bucket.
pub const BUCKET: &str = "bucket";
/// Its owner.
pub const ACCESS_KEY: &str = "AKIDEXAMPLE";
/// The owner's secret.
pub const SECRET_KEY: &str = "a/secret+of=tests";

/// What a request meets.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// An answer with this status and code; nothing is done.
    Answer(u16, &'static str),
    /// An answer with this status, whose body is a MiB long and repeats the request's headers and address, with a code if it is not empty;
    /// nothing is done.
    Echo(u16, &'static str),
    /// The connection ends, and nothing is done.
    Reset,
    /// It is done, and the connection ends without an answer.
    ResetAfter,
    /// It is done so much later.
    Slow(Duration),
    /// The first half of the answer's body arrives, then the connection ends.
    Half,
}

struct Rule {
    method: &'static str,
    part: String,
    times: u64,
    fault: Fault,
}

struct Shared {
    memory: Arc<Memory>,
    service: S3Service,
    rules: Mutex<Vec<Rule>>,
    requests: Mutex<BTreeMap<String, u64>>,
    met: AtomicU64,
}

/// The server. It ends with its value.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// Starts one.
    pub fn new() -> Self {
        let memory = Arc::new(Memory { bucket: BUCKET, kept: Mutex::default() });
        let mut builder = S3ServiceBuilder::new(Service(memory.clone()));
        builder.set_auth(Keys);
        let shared = Arc::new(Shared {
            memory,
            service: builder.build(),
            rules: Mutex::default(),
            requests: Mutex::default(),
            met: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener that does not block");
        let address = listener.local_addr().expect("an address");
        let own = shared.clone();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, own.clone()));
            }
        });
        Self { shared, address, runtime: Some(runtime) }
    }

    /// Where it listens: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What a device below `prefix` is called.
    pub fn device(&self, prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}?endpoint={}&region=us-east-1", self.endpoint())
    }

    /// What a program needs in its environment.
    pub fn environment() -> [(&'static str, &'static str); 2] {
        [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)]
    }

    /// The next `times` requests with this method, or any (`*`), whose address contains `part`, meet a fault.
    pub fn inject(&self, method: &'static str, part: &str, times: u64, fault: Fault) {
        self.shared.rules.lock().push(Rule { method, part: part.into(), times, fault });
    }

    /// From now on nothing is wrong.
    pub fn heal(&self) {
        self.shared.rules.lock().clear();
    }

    /// How many requests have met a fault.
    pub fn met(&self) -> u64 {
        self.shared.met.load(SeqCst)
    }

    /// Requests so far, by method; a listing counts as `LIST`.
    pub fn requests(&self) -> BTreeMap<String, u64> {
        self.shared.requests.lock().clone()
    }

    /// How long what is stored or deleted is not seen by listings.
    pub fn lag(&self, lag: Duration) {
        self.shared.memory.kept.lock().lag = lag;
    }

    /// How it deals with conditions.
    pub fn conditions(&self, conditions: Conditions) {
        self.shared.memory.kept.lock().conditions = conditions;
    }

    /// The names of all objects, whatever a listing says.
    pub fn names(&self) -> Vec<String> {
        self.shared.memory.names()
    }

    /// All objects.
    pub fn copy(&self) -> BTreeMap<String, Bytes> {
        self.shared.memory.copy()
    }

    /// These objects instead of all.
    pub fn restore(&self, copy: &BTreeMap<String, Bytes>) {
        self.shared.memory.restore(copy);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Ends a connection without an answer.
#[derive(Debug)]
struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is broken on purpose")
    }
}

impl std::error::Error for Broken {}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request| answer(request, shared.clone()));
    // A connection that ends is what clients have to live with.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Shared {
    fn fault(&self, method: &str, uri: &str) -> Option<Fault> {
        let mut rules = self.rules.lock();
        let of = |rule: &&mut Rule| {
            rule.times > 0
                && (rule.method == "*" || rule.method == method)
                && uri.contains(&rule.part)
        };
        let rule = rules.iter_mut().find(of)?;
        rule.times -= 1;
        self.met.fetch_add(1, SeqCst);
        Some(rule.fault)
    }
}

/// A body that arrives whole.
fn whole(bytes: Bytes) -> BoxBody<Bytes, Broken> {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}

/// A long answer that repeats what was said.
fn echo(said: &str, code: &str) -> Bytes {
    let padding = " ".repeat(1 << 20);
    let text = match code {
        "" => format!("<html>{said}{padding}</html>"),
        code => format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>as the test wants</Message><StringToSign>{said}</StringToSign>{padding}</Error>"
        ),
    };
    text.into()
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<BoxBody<Bytes, Broken>>, Broken> {
    let uri = request.uri().to_string();
    let method = match uri.contains("list-type=2") {
        true => "LIST".to_string(),
        false => request.method().to_string(),
    };
    *shared.requests.lock().entry(method.clone()).or_default() += 1;
    let fault = shared.fault(&method, &uri);
    match fault {
        Some(Fault::Answer(status, code)) => {
            // A client may not listen before it has said all.
            let _ = request.into_body().collect().await;
            let text = format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>as the test wants</Message></Error>"
            );
            let body = if method == "HEAD" { Bytes::new() } else { text.into() };
            return Response::builder().status(status).body(whole(body)).map_err(|_| Broken);
        }
        Some(Fault::Echo(status, code)) => {
            let said = format!("{uri}\n{:?}\n", request.headers());
            let _ = request.into_body().collect().await;
            return Response::builder()
                .status(status)
                .body(whole(echo(&said, code)))
                .map_err(|_| Broken);
        }
        Some(Fault::Reset) => return Err(Broken),
        Some(Fault::Slow(late)) => tokio::time::sleep(late).await,
        _ => {}
    }
    let done = shared.service.call(request.map(Into::into)).await.map_err(|_| Broken)?;
    if matches!(fault, Some(Fault::ResetAfter)) {
        return Err(Broken);
    }
    let (mut parts, body) = done.into_parts();
    let bytes = body.collect().await.map_err(|_| Broken)?.to_bytes();
    if matches!(fault, Some(Fault::Half)) && method != "HEAD" {
        parts.headers.insert("content-length", bytes.len().into());
        let half = Ok(Frame::data(bytes.slice(..bytes.len() / 2)));
        let body = StreamBody::new(stream::iter([half, Err(Broken)]));
        return Ok(Response::from_parts(parts, BodyExt::boxed(body)));
    }
    Ok(Response::from_parts(parts, whole(bytes)))
}
