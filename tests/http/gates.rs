//! The gates, over every route that the surface has, new ones included.

use serde_json::json;

use crate::{Answer, Served};

/// A route, as the surface describes it.
struct Route {
    method: String,
    path: String,
    scope: Option<String>,
    upgrades: bool,
}

impl Route {
    fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// Returns whether it leads to a handler that is made to hang or to break; what it answers is
    /// looked at elsewhere.
    fn is_hostile(&self) -> bool {
        self.path.starts_with("/api/v1/test/")
    }
}

fn routes(served: &Served) -> Vec<Route> {
    let document = served.get("/openapi.json").json();
    let paths = document["paths"].as_object().expect("it has paths").clone();
    let routes: Vec<Route> = paths
        .iter()
        // Some of the binary under test never answer, and all are served as those built in are.
        .filter(|(path, _)| !path.starts_with("/api/v1/test/"))
        .flat_map(|(path, methods)| {
            methods.as_object().expect("methods").iter().map(|(method, operation)| Route {
                method: method.to_uppercase(),
                path: path.clone(),
                scope: operation["x-reeve-scope"].as_str().map(ToOwned::to_owned),
                upgrades: operation["responses"]["101"].is_object(),
            })
        })
        .collect();
    assert!(routes.len() >= 12, "the table was read");
    routes
}

fn ask(served: &Served, line: &str, host: &str, headers: &str) -> Answer {
    let length = if line.starts_with("POST") { "Content-Length: 0\r\n" } else { "" };
    served.raw(format!("{line} HTTP/1.1\r\nHost: {host}\r\n{length}{headers}\r\n").as_bytes())
}

#[test]
fn no_route_answers_a_stranger() {
    let served = Served::new();
    let (port, token) = (served.port, served.token.clone());
    let good = format!("127.0.0.1:{port}");
    let bearer = format!("Authorization: Bearer {token}\r\n");
    for route in routes(&served) {
        let line = route.line();
        for host in [
            "evil.example".to_owned(),
            "127.0.0.1".to_owned(),
            format!("127.0.0.1:{}", port ^ 1),
            format!("evil.example:{port}"),
            format!("localhost.:{port}"),
            format!("LOCALHOST:{port}"),
            format!("0.0.0.0:{port}"),
        ] {
            let forwarded =
                format!("{bearer}X-Forwarded-Host: {good}\r\nForwarded: host={good}\r\n");
            let answer = ask(&served, &line, &host, &forwarded);
            assert_eq!(
                (answer.status, answer.reason().as_str()),
                (403, "forbidden_host"),
                "{line}"
            );
        }
        for origin in [
            "http://evil.example".to_owned(),
            "null".to_owned(),
            format!("http://127.0.0.1:{}", port ^ 1),
            format!("https://127.0.0.1:{port}"),
            format!("http://127.0.0.1:{port}.evil.example"),
            format!("http://localhost:{port}"),
            format!("http://127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}"),
        ] {
            let answer = ask(&served, &line, &good, &format!("{bearer}Origin: {origin}\r\n"));
            let seen = (answer.status, answer.reason());
            assert_eq!(seen, (403, "forbidden_origin".to_owned()), "{line} {origin}");
            assert!(!answer.head.contains("access-control"), "{line}");
        }
        for site in ["cross-site", "same-site", "", "none\r\nSec-Fetch-Site: none"] {
            let answer = ask(&served, &line, &good, &format!("{bearer}Sec-Fetch-Site: {site}\r\n"));
            assert_eq!(
                (answer.status, answer.reason().as_str()),
                (403, "forbidden_site"),
                "{line}"
            );
        }
    }
    served.still_fine();
}

#[test]
fn no_route_but_the_proof_answers_without_a_token() {
    let served = Served::new();
    let good = format!("localhost:{}", served.port);
    let cut = &served.token[1..];
    let mut bodies = std::collections::BTreeSet::new();
    let mut lines: Vec<(String, Option<String>)> =
        routes(&served).iter().map(|route| (route.line(), route.scope.clone())).collect();
    lines.push(("GET /nowhere".to_owned(), Some("observe".to_owned())));
    lines.push(("OPTIONS /api/v1/executions".to_owned(), Some("observe".to_owned())));
    for (line, scope) in lines {
        for headers in [
            String::new(),
            "Authorization: Bearer \r\n".to_owned(),
            format!("Authorization: Bearer {cut}\r\n"),
            format!("Authorization: Basic {}\r\n", served.token),
            format!("Authorization: {}\r\n", served.token),
            format!("Cookie: token={}\r\n", served.token),
            "Authorization: Bearer observe.00.00\r\n".to_owned(),
        ] {
            let answer = ask(&served, &line, &good, &headers);
            if scope.is_none() {
                assert_ne!(answer.status, 401, "{line}");
                continue;
            }
            assert_eq!(answer.status, 401, "{line} {headers}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{line}");
            bodies.insert(answer.body);
        }
        let by_query = format!("{line}?token={}", served.token);
        let answer = ask(&served, &by_query, &good, "");
        assert_eq!(answer.status, if scope.is_none() { 400 } else { 401 }, "{line}");
    }
    assert_eq!(bodies.len(), 1, "missing and wrong are told alike: {bodies:?}");
}

#[test]
fn a_token_of_another_scope_opens_nothing() {
    let served = Served::new();
    let scopes = ["observe", "start", "report", "confirm", "admin"];
    let tokens = scopes
        .map(|scope| served.checkout.run(["token", "--scope", scope]).stdout.trim().to_owned());
    let host = format!("[::1]:{}", served.port);
    for route in routes(&served) {
        let Some(needed) = &route.scope else { continue };
        for (scope, token) in scopes.iter().zip(&tokens) {
            if scope == needed && route.is_hostile() {
                continue;
            }
            let headers = format!("Authorization: Bearer {token}\r\n");
            let answer = ask(&served, &route.line(), &host, &headers);
            let seen = (answer.status == 403, answer.status);
            assert_eq!(seen.0, scope != needed, "{} with {scope}: {answer:?}", route.line());
            if seen.0 {
                assert_eq!(answer.reason(), "scope", "{}", route.line());
            }
        }
    }
}

#[test]
fn a_route_takes_its_own_methods_only() {
    let served = Served::new();
    let host = format!("127.0.0.1:{}", served.port);
    let bearer = format!("Authorization: Bearer {}\r\n", served.token);
    for route in routes(&served) {
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "FOO"] {
            let line = format!("{method} {}", route.path);
            let own = method == route.method
                || (method == "HEAD" && route.method == "GET" && !route.upgrades);
            if own && route.is_hostile() {
                continue;
            }
            let answer = ask(&served, &line, &host, &bearer);
            assert_eq!(answer.status == 405, !own, "{line}: {answer:?}");
            assert!(own || answer.header("allow").is_some(), "{line}");
            assert!(method != "HEAD" || answer.body.is_empty(), "{line}");
        }
    }
    served.still_fine();
}

#[test]
fn our_own_page_and_every_spelling_of_loopback_pass() {
    let served = Served::new();
    for name in ["127.0.0.1", "[::1]", "localhost"] {
        let host = format!("{name}:{}", served.port);
        let headers = format!(
            "Authorization: bearer {}\r\nOrigin: http://{host}\r\nSec-Fetch-Site: same-origin\r\n\
             X-Forwarded-Host: evil.example\r\n",
            served.token
        );
        let answer = ask(&served, "GET /api/v1/executions", &host, &headers);
        assert_eq!(answer.status, 200, "{host}: {answer:?}");
        assert!(!answer.body.contains("evil"), "forwarding headers are never read");
        for (name, value) in [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("cross-origin-resource-policy", "same-origin"),
            ("x-frame-options", "DENY"),
            ("connection", "close"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{name}");
        }
        assert!(answer.header("content-security-policy").is_some());
        assert!(!answer.head.contains("access-control"));
    }
}

#[test]
fn the_server_proves_itself_before_it_is_sent_a_token() {
    let served = Served::new();
    let host = format!("127.0.0.1:{}", served.port);
    let ask_for = |nonce: &str| {
        ask(&served, &format!("GET /api/v1/instance?nonce={nonce}"), &host, "").json()
    };
    let (one, again, other) = (ask_for("abcdefgh1"), ask_for("abcdefgh1"), ask_for("abcdefgh2"));
    assert_eq!(one["proof"], again["proof"]);
    assert_ne!(one["proof"], other["proof"]);
    assert_eq!(one["instance"], served.checkout.lease().expect("a lease").instance);
    assert!(!one.to_string().contains(&served.token));
}

#[test]
fn a_new_token_ends_the_old_ones_while_the_broker_lives() {
    let served = Served::new();
    let scoped = served.checkout.run(["token", "--scope", "observe"]).stdout;
    let before = served.get("/healthz");
    assert_eq!(before.status, 200);
    let rotated = served.checkout.json(["token", "--rotate"]);
    assert_eq!(rotated["scopes"], json!("observe,start,report,confirm,admin"));
    assert_eq!(served.get("/healthz").status, 401);
    let old = Served { token: scoped.trim().to_owned(), ..served };
    assert_eq!(old.get("/healthz").status, 401);
    let token = rotated["token"].as_str().expect("a token").to_owned();
    let new = Served { token, ..old };
    assert_eq!(new.get("/healthz").status, 200);
}
