//! The worker: carries out one execution at a time and reports it.

pub mod clock;
pub mod link;
pub mod session;
