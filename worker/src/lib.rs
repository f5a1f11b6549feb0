//! The worker: carries out one execution at a time and reports it.
//!
//! Owns the reporting of an execution ([`session`]), the connection to a broker ([`link`]), the
//! process and its tree ([`process`]), functions as capabilities ([`handler`]), those that come
//! with reeve (`builtin`), the search for secrets in what is reported ([`scrub`]) and the loop that
//! brings them together ([`drive`]). The rule: work is done in this process, and no broker that is
//! slow, stopped or gone slows it down.
//! Never starts a broker and never decides what may run.

mod builtin;
pub mod clock;
pub mod drive;
pub mod handler;
pub mod link;
pub mod process;
pub mod scrub;
pub mod session;
