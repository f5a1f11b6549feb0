//! Pages: what a browser is shown, and how a person's browser becomes one that may ask.
//!
//! A link with a code that is good once opens them. With scripts the code stands in the fragment,
//! which no server and no log sees, and is exchanged for a cookie and a token; without scripts it
//! stands in the path and buys the cookie alone. The cookie reads pages and nothing else: every
//! call of the API needs the token. No page holds a token.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use maud::{DOCTYPE, Markup, html};
use reeve_protocol::{Code, Fault};
use serde_json::{Value, json};

use super::Surface;
use super::answer::{Refusal, dress, json_response};
use super::call::{Query, body, text_member};
use super::gate::{Caller, one};
use crate::plane::Shown;
use crate::token::Scope;

/// The page that a link leads to.
const OPEN: &str = "/open";
/// Where a code is exchanged.
const SESSION: &str = "/api/v1/session";
/// What is shown first.
const HOME: &str = "/cockpit/executions";
/// The script that exchanges a code.
const OPEN_SCRIPT: &str = "/assets/open.js";
/// How long a cookie is good, in seconds.
const COOKIE_SECONDS: i64 = 12 * 3_600;
/// Executions that the list shows.
const LISTED_MAX: usize = 200;
/// What a page may load and do: its own scripts, styles and connections.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns whether this asks for the page that a link leads to, which holds nothing and does nothing
/// without the code that only the link has: a browser may come from anywhere.
pub fn is_open(request: &Request<Body>) -> bool {
    request.uri().path() == OPEN && *request.method() == Method::GET
}

/// Answers what is no call of the API; `None` for everything else.
///
/// # Errors
///
/// A refusal in the API's own form where no page was asked for.
pub async fn answer(
    request: Request<Body>,
    caller: Caller,
    surface: &Surface,
) -> Result<Result<Response, Request<Body>>, Refusal> {
    let path = request.uri().path();
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let known = path == SESSION
        || path == "/"
        || [OPEN, "/cockpit", "/assets"].iter().any(|base| under(path, base));
    if !known {
        return Ok(Err(request));
    }
    if path == SESSION {
        return session(request, surface).await.map(Ok);
    }
    if !reads {
        let message = "pages are read with GET";
        return Err(Refusal::from(Fault::new(Code::MethodNotAllowed, message)).allow("GET, HEAD"));
    }
    if path == OPEN {
        return Ok(Ok(page(StatusCode::OK, &open_page())));
    }
    if path == OPEN_SCRIPT {
        return Ok(Ok(script(include_str!("pages/open.js"))));
    }
    if let Some(code) = path.strip_prefix("/open/") {
        return Ok(Ok(by_path(code, surface)));
    }
    let may = caller.may(Scope::Observe).is_ok() || has_cookie(request.headers(), surface);
    if !may {
        return Ok(Ok(page(StatusCode::UNAUTHORIZED, &locked_page())));
    }
    Ok(Ok(match path {
        "/" | "/cockpit" => redirect(HOME),
        HOME => page(StatusCode::OK, &list_page(surface)),
        _ => page(StatusCode::NOT_FOUND, &missing_page()),
    }))
}

fn under(path: &str, base: &str) -> bool {
    path.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Exchanges a code for a cookie and a token.
async fn session(request: Request<Body>, surface: &Surface) -> Result<Response, Refusal> {
    if *request.method() != Method::POST {
        let message = "this route takes POST";
        return Err(Refusal::from(Fault::new(Code::MethodNotAllowed, message)).allow("POST"));
    }
    Query::parse(request.uri().query(), &[], &[])?;
    let members = body(request, &["code"], surface).await?;
    let code: String = text_member(&members, "code")?;
    let broker = surface.broker();
    let scopes = broker.codes.use_up(&code, None, broker.uptime()).ok_or_else(|| {
        Refusal::from(
            Fault::new(Code::Unauthorized, "this link was used or is too old")
                .hint("`reeve open` makes a new one"),
        )
    })?;
    let failed = |_| Fault::new(Code::Internal, "the system gives no random numbers");
    let token = surface.keys().scoped(scopes).map_err(failed)?;
    let mut response = json_response(StatusCode::OK, &json!({ "token": token }));
    set_cookie(&mut response, surface)?;
    Ok(response)
}

/// Takes a code in the path: for browsers without scripts, which may read.
fn by_path(code: &str, surface: &Surface) -> Response {
    let broker = surface.broker();
    if broker.codes.use_up(code, None, broker.uptime()).is_none() {
        return page(StatusCode::UNAUTHORIZED, &locked_page());
    }
    let mut response = redirect(HOME);
    match set_cookie(&mut response, surface) {
        Ok(()) => response,
        Err(_) => page(StatusCode::INTERNAL_SERVER_ERROR, &locked_page()),
    }
}

/// Cookies are not told apart by port: each broker's has a name of its own.
fn cookie_name(surface: &Surface) -> String {
    format!("reeve-{}", surface.port())
}

fn set_cookie(response: &mut Response, surface: &Surface) -> Result<(), Fault> {
    let failed = || Fault::new(Code::Internal, "no cookie could be made");
    let until = seconds(surface) + COOKIE_SECONDS;
    let value = surface.keys().cookie(until).map_err(|_| failed())?;
    let name = cookie_name(surface);
    let text =
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={COOKIE_SECONDS}");
    let text = HeaderValue::from_str(&text).map_err(|_| failed())?;
    response.headers_mut().insert(header::SET_COOKIE, text);
    Ok(())
}

fn has_cookie(headers: &HeaderMap, surface: &Surface) -> bool {
    let name = cookie_name(surface);
    let mut cookies = one(headers, "cookie").into_iter().flat_map(|text| text.split("; "));
    let value = cookies.find_map(|pair| pair.strip_prefix(name.as_str())?.strip_prefix('='));
    value.is_some_and(|value| surface.keys().is_cookie(value, seconds(surface)))
}

/// Returns the wall clock in seconds since 1970.
fn seconds(surface: &Surface) -> i64 {
    surface.broker().clock.now().wall.as_micros() / 1_000_000
}

fn redirect(to: &'static str) -> Response {
    let mut response = page(StatusCode::SEE_OTHER, &html! { p { a href=(to) { "go on" } } });
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(to));
    response
}

fn page(status: StatusCode, content: &Markup) -> Response {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Reeve" }
            }
            body { (content) }
        }
    };
    let mut response = text(status, document.into_string(), "text/html; charset=utf-8");
    response
        .headers_mut()
        .insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}

fn script(source: &'static str) -> Response {
    text(StatusCode::OK, source.to_owned(), "text/javascript; charset=utf-8")
}

fn text(status: StatusCode, content: String, kind: &'static str) -> Response {
    let mut response = Response::new(Body::from(content));
    *response.status_mut() = status;
    dress(&mut response);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn open_page() -> Markup {
    html! {
        main id="open" data-session=(SESSION) data-next=(HOME) {
            h1 { "Reeve" }
            p id="said" { "Opening…" }
            noscript {
                p { "This link needs scripts; " code { "reeve open --no-script" }
                    " prints one that does not." }
            }
        }
        script type="module" src=(OPEN_SCRIPT) {}
    }
}

fn locked_page() -> Markup {
    html! {
        main {
            h1 { "Reeve" }
            p { "This page opens with a link that " code { "reeve open" }
                " prints in the checkout." }
        }
    }
}

fn missing_page() -> Markup {
    html! {
        main {
            h1 { "There is no such page" }
            p { a href=(HOME) { "Executions" } }
        }
    }
}

fn list_page(surface: &Surface) -> Markup {
    let broker = surface.broker();
    let gauges = broker.board.gauges();
    let shown = broker.board.newest_first();
    html! {
        main {
            h1 { "Executions of " (broker.about.repository.name) }
            p { (gauges.remembered) " remembered, " (gauges.active) " active, "
                (gauges.queued) " queued" }
            table {
                thead { tr {
                    th { "State" } th { "Capability" } th { "Title" } th { "Created" }
                    th { "Execution" }
                } }
                tbody { @for one in shown.iter().take(LISTED_MAX) { (row(one)) } }
            }
            @if shown.is_empty() {
                p { "Nothing has run yet. Run something: " code { "reeve run" } }
            }
            p { "This page reads only; " code { "reeve run" } " and " code { "reeve executions" }
                " act." }
        }
    }
}

fn row(shown: &Shown) -> Markup {
    let snapshot = &shown.snapshot;
    html! {
        tr data-sequence=(shown.last) {
            td { (snapshot.state) }
            td { (snapshot.capability) }
            td { (snapshot.title) }
            td { (snapshot.created_at) }
            td { (snapshot.id) }
        }
    }
}

/// Describes the exchange of a code, for the description of the surface.
pub fn described() -> (&'static str, Value) {
    let text = json!({ "type": "string" });
    let one = |name: &str| {
        json!({
            "type": "object", "properties": { name: text }, "required": [name],
            "additionalProperties": false,
        })
    };
    let content = |schema: Value| json!({ "application/json": { "schema": schema } });
    let refused = json!({ "$ref": "#/components/schemas/Refused" });
    let operation = json!({
        "operationId": "session",
        "summary": "Exchange the code of a link for a cookie and a token",
        "security": [],
        "requestBody": { "required": true, "content": content(one("code")) },
        "responses": {
            "200": { "description": "The token of the pages.", "content": content(one("token")) },
            "default": { "description": "Why it is not answered.", "content": content(refused) },
        },
    });
    (SESSION, json!({ "post": operation }))
}
