//! Unit tests of one step each.
