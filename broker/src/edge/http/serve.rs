//! Serving: from a connection to its answer.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::BytesMut;
use http::{Method, Request, StatusCode};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use reeve_protocol::{Code, Fault};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::answer::{Refusal, json_response};
use super::call::Query;
use super::gate::{self, Caller};
use super::io::Rewound;
use super::route::{Operation, ROUTES, Route, find};
use super::{Surface, direct, handlers, head, pages, report};
use crate::edge::ws;
use crate::openapi;

/// How long a head may take.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// How long a request may take in all, unless it becomes a channel.
const REQUEST_DEADLINE: Duration = Duration::from_secs(60);
/// How long accepting rests after the system refused (too many open files).
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Connections, at most.
const CONNECTIONS_MAX: usize = 1_024;
/// Bytes that the system keeps for a peer that does not read.
const SEND_BUFFER: usize = 256 << 10;

/// Listens on loopback: at the port that is asked for, else where this checkout was last, else
/// anywhere.
///
/// # Errors
///
/// When the port that was asked for is taken, or none can be had.
pub async fn listen(port: Option<u16>, state_dir: &Path) -> io::Result<TcpListener> {
    let bind = async |port| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await;
    let file = state_dir.join("port");
    let listener = match port {
        Some(port) => bind(port).await?,
        None => {
            let last = std::fs::read_to_string(&file).ok();
            let last = last.and_then(|text| text.trim().parse::<u16>().ok()).unwrap_or(0);
            match bind(last).await {
                Ok(listener) => listener,
                Err(_) => bind(0).await?,
            }
        }
    };
    let port = listener.local_addr()?.port();
    if let Err(error) = crate::seat::replace_file(&file, format!("{port}\n").as_bytes()) {
        tracing::warn!(%error, "the port is not remembered; the next broker takes another");
    }
    Ok(listener)
}

/// Accepts connections until the task is dropped.
pub async fn accept(listener: TcpListener, surface: Surface) {
    let open = Arc::new(AtomicUsize::new(0));
    let router = router(&surface);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let open = Open::count(&open);
                let router = router.clone();
                let surface = surface.clone();
                actix::spawn(async move { connection(stream, router, &surface, &open).await });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}

/// Counts one open connection for as long as it lives.
struct Open(Arc<AtomicUsize>, usize);

impl Open {
    fn count(open: &Arc<AtomicUsize>) -> Self {
        let number = open.fetch_add(1, Ordering::Relaxed) + 1;
        Self(Arc::clone(open), number)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connection(stream: TcpStream, router: Router, surface: &Surface, open: &Open) {
    let tuned = stream.set_nodelay(true).and_then(|()| {
        Ok(rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER)?)
    });
    if let Err(error) = tuned {
        tracing::debug!(%error, "a connection could not be tuned");
    }
    let mut stream = stream;
    let mut first = BytesMut::new();
    let checked = if open.1 > CONNECTIONS_MAX {
        let message = format!("{CONNECTIONS_MAX} connections are open");
        Err(Fault::new(Code::Busy, message).because("too_many_connections").into())
    } else {
        match tokio::time::timeout(HEAD_DEADLINE, read_head(&mut stream, &mut first)).await {
            Ok(Ok(checked)) => checked,
            Ok(Err(_)) => return,
            // Somebody connected ahead of time and asked nothing.
            Err(_) if first.is_empty() => return,
            Err(_) => {
                let message = format!("no whole head came in {} s", HEAD_DEADLINE.as_secs());
                Err(Fault::new(Code::Timeout, message).because("head_deadline").into())
            }
        }
    };
    if let Err(refusal) = checked {
        let refusal = told(refusal, surface, "-", "-");
        let mut stream = Rewound::new(stream, BytesMut::new());
        let answered = async {
            stream.write_all(&refusal.to_bytes()).await?;
            stream.shutdown().await
        };
        drop(tokio::time::timeout(HEAD_DEADLINE, answered).await);
        return;
    }
    let served = http1::Builder::new()
        .max_headers(head::HEADERS_MAX + 1)
        .serve_connection(
            TokioIo::new(Rewound::new(stream, first)),
            TowerToHyperService::new(router),
        )
        .with_upgrades();
    match tokio::time::timeout(REQUEST_DEADLINE, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection broke"),
        Err(_) => tracing::debug!("a connection took too long"),
    }
}

/// Reads until the head is whole and good, or certainly not; an error needs no answer.
async fn read_head(
    stream: &mut TcpStream,
    first: &mut BytesMut,
) -> io::Result<Result<(), Refusal>> {
    loop {
        first.reserve(4 << 10);
        if stream.read_buf(first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match head::check(first) {
            Ok(true) => return Ok(Ok(())),
            Ok(false) => {}
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// Makes the router: the gates first, then the table of routes.
fn router(surface: &Surface) -> Router {
    let surface = surface.clone();
    let enter = move |request: Request<Body>| {
        let surface = surface.clone();
        async move {
            let method = request.method().to_string();
            let path = request.uri().path().to_owned();
            match enter(request, &surface).await {
                Ok(response) => response,
                Err(refusal) => told(refusal, &surface, &method, &path).into_response(),
            }
        }
    };
    Router::new().fallback(enter)
}

/// Writes one line into the log, and ties the answer to it. No query, body or token is in it.
fn told(refusal: Refusal, surface: &Surface, method: &str, path: &str) -> Refusal {
    let refusal = refusal.about(&surface.correlation());
    let fault = refusal.fault();
    let path = reeve_protocol::sanitise::text(path, 64);
    tracing::info!(
        status = refusal.code(),
        code = fault.code.as_str(),
        reason = fault.reason.as_deref().unwrap_or_default(),
        correlation = fault.correlation_id,
        method = ?method,
        path = ?path,
        "a request was refused"
    );
    refusal
}

async fn enter(request: Request<Body>, surface: &Surface) -> Result<Response, Refusal> {
    gate::place(request.headers(), surface.port())?;
    if !pages::is_open(&request) {
        gate::site(request.headers())?;
    }
    let mut caller = gate::caller(request.headers(), surface);
    let request = match pages::answer(request, caller, surface).await? {
        Ok(page) => return Ok(page),
        Err(request) => request,
    };
    let route = find(request.uri().path());
    let open = route.is_some_and(|route| route.scope.is_none());
    if caller.scopes.is_none() && !open {
        caller = handlers::by_ticket(&request, route, surface).ok_or_else(gate::unauthorized)?;
    }
    let Some(route) = route else {
        let registry = surface.broker().registry();
        let capability = direct::find(request.uri().path(), &registry).ok_or_else(no_route)?;
        let value = direct::answer(request, &capability, caller, surface).await?;
        return Ok(json_response(StatusCode::OK, &value));
    };
    method(request.method(), route)?;
    if let Some(scope) = route.scope {
        caller.may(scope)?;
    }
    let query = Query::parse(request.uri().query(), route.query, &["execution"])?;
    dispatch(request, route, &query, caller, surface).await
}

async fn dispatch(
    request: Request<Body>,
    route: &Route,
    query: &Query,
    caller: Caller,
    surface: &Surface,
) -> Result<Response, Refusal> {
    let value = match route.operation {
        Operation::Channel => return ws::upgrade(request, query, caller, surface),
        Operation::Instance => handlers::instance(query, surface)?,
        Operation::Health => handlers::health(surface).await?,
        Operation::OpenApi => {
            let broker = surface.broker();
            openapi::document(ROUTES, &broker.registry(), &broker.about.version)
        }
        Operation::List => handlers::list(query, surface).await?,
        Operation::Get => surface.broker().get(query.needed("id")?)?,
        Operation::Events => handlers::events(query, surface).await?,
        Operation::Raw => return handlers::raw(query, surface).await,
        Operation::Protocol => surface.broker().protocol(),
        Operation::Start => handlers::start(request, surface).await?,
        Operation::Cancel => handlers::cancel(request, surface).await?,
        Operation::Capabilities => surface.broker().capabilities(),
        Operation::Capability => surface.broker().capability(&query.needed("id")?)?,
        Operation::Ticket => handlers::ticket(&request, caller, surface)?,
        Operation::Report => report::report(request, surface).await?,
    };
    Ok(json_response(StatusCode::OK, &value))
}

fn no_route() -> Refusal {
    Fault::new(Code::NotFound, "there is no such route")
        .because("route")
        .hint("`/openapi.json` lists the routes")
        .into()
}

fn method(method: &Method, route: &Route) -> Result<(), Refusal> {
    let taken = route.allow().split(", ").any(|allowed| allowed == method.as_str());
    if taken {
        return Ok(());
    }
    let message = format!("this route takes {}", route.allow());
    Err(Refusal::from(Fault::new(Code::MethodNotAllowed, message)).allow(route.allow()))
}
