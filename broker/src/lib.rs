//! The broker of a checkout: the execution plane, its actor, its stores and its local socket.
//!
//! The plane decides, the actor performs, the edges speak to sockets and decide nothing. Runs no
//! code of any capability: that is what workers are for.

pub mod plane;
pub mod pump;
pub mod store;
