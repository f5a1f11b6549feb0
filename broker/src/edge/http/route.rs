//! The routes: one table that gates, router, documentation and tests all read.

use crate::token::Scope;

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Proves that this broker knows the token.
    Instance,
    /// Makes a round trip through the plane.
    Health,
    /// Describes this surface.
    OpenApi,
    /// Lists executions.
    List,
    /// Shows one execution.
    Get,
    /// Reads one page of history.
    Events,
    /// Hands out what an execution has printed.
    Raw,
    /// Tells the contract of the streams.
    Protocol,
    /// Starts an execution.
    Start,
    /// Asks an execution to stop.
    Cancel,
    /// Takes what another process runs.
    Report,
    /// Lists what is declared.
    Capabilities,
    /// Shows one capability.
    Capability,
    /// Makes a ticket for one upgrade.
    Ticket,
    /// The live channel.
    Channel,
}

/// One route.
#[derive(Debug)]
pub struct Route {
    /// What it does.
    pub operation: Operation,
    /// Its path; nothing in it varies.
    pub path: &'static str,
    /// Whether it changes something, and is asked by POST; else by GET or HEAD.
    pub posts: bool,
    /// What a caller must be allowed; `None` for the one that is asked before a token is sent.
    pub scope: Option<Scope>,
    /// The query parameters it knows, each with its meaning.
    pub query: &'static [(&'static str, &'static str)],
    /// Its name in the API's description.
    pub id: &'static str,
    /// What it is for, in a sentence.
    pub summary: &'static str,
}

impl Route {
    /// Returns the methods that are taken.
    pub fn allow(&self) -> &'static str {
        match (self.posts, self.operation) {
            (true, _) => "POST",
            (false, Operation::Channel) => "GET",
            (false, _) => "GET, HEAD",
        }
    }
}

const ID: (&str, &str) = ("id", "The execution's id.");
const LIMIT: (&str, &str) = ("limit", "At most so many; more than the bound is the bound.");

const fn get(
    operation: Operation,
    path: &'static str,
    id: &'static str,
    query: &'static [(&'static str, &'static str)],
    summary: &'static str,
) -> Route {
    Route { operation, path, posts: false, scope: Some(Scope::Observe), query, id, summary }
}

const fn post(
    operation: Operation,
    path: &'static str,
    id: &'static str,
    scope: Scope,
    summary: &'static str,
) -> Route {
    Route { operation, path, posts: true, scope: Some(scope), query: &[], id, summary }
}

/// Every route.
pub const ROUTES: &[Route] = &[
    Route {
        operation: Operation::Instance,
        path: "/api/v1/instance",
        posts: false,
        scope: None,
        query: &[("nonce", "8 to 128 letters and digits of the caller's own choice.")],
        id: "instance",
        summary: "Prove that this broker knows the token, before it is sent here",
    },
    get(Operation::Health, "/healthz", "healthz", &[], "Say whether the broker works"),
    get(Operation::OpenApi, "/openapi.json", "openapi", &[], "Describe this surface"),
    get(
        Operation::List,
        "/api/v1/executions",
        "executions.list",
        &[
            ("state", "Only those in this state."),
            ("capability", "Only those of this capability."),
            LIMIT,
            ("before", "Only those older than this one: the `next` of the page before."),
        ],
        "List executions, newest first",
    ),
    get(Operation::Get, "/api/v1/executions/get", "executions.get", &[ID], "Show an execution"),
    get(
        Operation::Events,
        "/api/v1/executions/events",
        "executions.events",
        &[ID, ("after", "The last sequence that the caller holds; 0 if none."), LIMIT],
        "Read one page of an execution's history",
    ),
    get(
        Operation::Raw,
        "/api/v1/executions/raw",
        "executions.raw",
        &[ID, ("stream", "stdout, stderr or handler; everything if it is left out.")],
        "Download what an execution has printed, as text",
    ),
    get(
        Operation::Protocol,
        "/api/v1/executions/protocol",
        "executions.protocol",
        &[],
        "Tell the contract of the live channel and the limits in force",
    ),
    post(
        Operation::Start,
        "/api/v1/executions/start",
        "executions.start",
        Scope::Start,
        "Start an execution of a declared capability",
    ),
    post(
        Operation::Cancel,
        "/api/v1/executions/cancel",
        "executions.cancel",
        Scope::Start,
        "Ask an execution to stop",
    ),
    post(
        Operation::Report,
        "/api/v1/executions/report",
        "executions.report",
        Scope::Report,
        "Report an execution that runs elsewhere",
    ),
    get(
        Operation::Capabilities,
        "/api/v1/capabilities",
        "capabilities.list",
        &[],
        "List what is declared",
    ),
    get(
        Operation::Capability,
        "/api/v1/capabilities/get",
        "capabilities.get",
        &[("id", "The capability's id.")],
        "Show a capability",
    ),
    post(
        Operation::Ticket,
        "/api/v1/ticket",
        "ticket",
        Scope::Observe,
        "Make a ticket for one upgrade of a browser, which cannot send a header there",
    ),
    get(
        Operation::Channel,
        "/events",
        "events",
        crate::edge::ws::PARAMETERS,
        "Open the live channel, a WebSocket",
    ),
];

/// Returns the route of a path.
pub fn find(path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.path == path)
}
