//! stub

pub mod process;
