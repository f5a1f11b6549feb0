//! stub
pub mod seat;
