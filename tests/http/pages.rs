//! The pages: how a person's browser comes to them, and what nobody else gets.

use serde_json::json;

use crate::{Answer, Served};

impl Served {
    /// Asks for something as a browser does, without a token.
    #[track_caller]
    fn browse(&self, target: &str, headers: &str) -> Answer {
        let host = format!("127.0.0.1:{}", self.port);
        self.raw(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n").as_bytes())
    }

    /// Exchanges a code as the page's script does.
    #[track_caller]
    fn exchange(&self, code: &str) -> Answer {
        let body = json!({ "code": code }).to_string();
        let origin = format!("http://127.0.0.1:{}", self.port);
        let head = format!(
            "POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nOrigin: {origin}\r\n\
             Sec-Fetch-Site: same-origin\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.port,
            body.len()
        );
        self.raw(head.as_bytes())
    }

    fn link(&self, args: &[&str]) -> String {
        let ran = self.checkout.run([&["open", "--print"], args].concat());
        assert_eq!(ran.code(), 0, "{ran:?}");
        ran.stdout.trim().to_owned()
    }
}

const HOME: &str = "/cockpit/executions";

#[test]
fn a_link_buys_a_cookie_that_reads_and_a_token_that_acts_once() {
    let served = Served::new();
    let link = served.link(&[]);
    let (url, code) = link.split_once('#').expect("the code stands in the fragment");
    assert_eq!(url, format!("http://127.0.0.1:{}/open", served.port));
    // The page itself is the same for everybody, wherever they come from.
    let page = served.browse("/open", "Sec-Fetch-Site: cross-site\r\n");
    assert_eq!(page.status, 200);
    assert!(!page.body.contains(code) && page.body.contains("data-session"));
    assert_eq!(served.browse("/assets/open.js", "").status, 200);

    let exchanged = served.exchange(code);
    assert_eq!(exchanged.status, 200, "{exchanged:?}");
    let cookie = exchanged.header("set-cookie").expect("a cookie").to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    let token = exchanged.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(served.exchange(code).status, 401, "it is good once");

    let with_cookie = format!("Cookie: a=b; {pair}\r\n");
    assert_eq!(served.browse(HOME, &with_cookie).status, 200);
    assert_eq!(served.browse("/", &with_cookie).header("location"), Some(HOME));
    let api = served.browse("/api/v1/executions", &with_cookie);
    assert_eq!(api.status, 401, "a cookie opens pages and nothing else");
    let with_token = format!("Authorization: Bearer {token}\r\n");
    assert_eq!(served.browse("/api/v1/executions", &with_token).status, 200);
    for (what, target, headers) in [
        ("another site", HOME, format!("{with_cookie}Sec-Fetch-Site: cross-site\r\n")),
        ("another origin", HOME, format!("{with_cookie}Origin: http://evil.example\r\n")),
    ] {
        assert_eq!(served.browse(target, &headers).status, 403, "{what}");
    }
    // A new secret ends both.
    served.checkout.run(["token", "--rotate"]);
    assert_eq!(served.browse(HOME, &with_cookie).status, 401);
    assert_eq!(served.browse("/api/v1/executions", &with_token).status, 401);
}

#[test]
fn a_link_for_browsers_without_scripts_reads_and_does_nothing_else() {
    let served = Served::new();
    let link = served.link(&["--no-script"]);
    let target = link.split_once(&format!(":{}", served.port)).unwrap().1;
    let opened = served.browse(target, "Sec-Fetch-Site: none\r\n");
    assert_eq!((opened.status, opened.header("location")), (303, Some(HOME)), "{opened:?}");
    let cookie = opened.header("set-cookie").expect("a cookie").split(';').next().unwrap();
    assert_eq!(served.browse(HOME, &format!("Cookie: {cookie}\r\n")).status, 200);
    assert_eq!(served.browse(target, "").status, 401, "it is good once");
}

#[test]
fn pages_show_what_ran_and_say_how_to_get_in() {
    let served = Served::new();
    let locked = served.browse(HOME, "");
    assert_eq!(locked.status, 401);
    assert!(locked.body.contains("reeve open"), "{locked:?}");
    assert!(locked.header("content-security-policy").unwrap().contains("frame-ancestors 'none'"));
    for forged in ["reeve-1=x", "reeve-1=9999999999.00.00"] {
        let forged = forged.replace("reeve-1", &format!("reeve-{}", served.port));
        assert_eq!(served.browse(HOME, &format!("Cookie: {forged}\r\n")).status, 401);
    }
    served.checkout.run(["exec", "--", "true", "<img src=x>"]);
    let page = served.get(HOME);
    assert!(page.body.contains("succeeded") && page.body.contains("process.exec"), "{page:?}");
    assert!(!page.body.contains("<img"), "what is shown is text");
    assert_eq!(served.get("/cockpit/nowhere").status, 404);
    assert_eq!(served.post("/cockpit/executions", &json!({})).status, 405);
}

#[test]
fn without_a_broker_there_is_nothing_to_open() {
    let mut served = Served::new();
    served.broker.kill();
    let ran = served.checkout.run(["open", "--print"]);
    assert_eq!(ran.code(), 5, "{ran:?}");
    assert!(ran.stderr.contains("reeve serve"), "{ran:?}");
}
