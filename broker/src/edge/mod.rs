//! Edges: code with a socket. They decode, ask and encode, and decide nothing.

mod client;
pub mod http;
mod left;
pub mod local;
pub mod worker;
pub mod ws;
