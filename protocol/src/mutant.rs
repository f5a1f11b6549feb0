//! Mutants: faults that are put in on purpose, one at a time, so that the simulation can show
//! that it would find them.
//!
//! Without the feature `mutants` none of them exists: [`on`] is the constant `false`. With it the
//! simulation turns one on for its own thread.

#[cfg(feature = "mutants")]
mod chosen {
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<&'static str> = const { Cell::new("") };
    }

    /// Turns one mutant on in this thread; an empty name turns it off.
    pub fn choose(name: &'static str) {
        ON.set(name);
    }

    /// Returns whether a mutant is on in this thread.
    pub fn on(name: &str) -> bool {
        ON.get() == name
    }
}

#[cfg(feature = "mutants")]
pub use chosen::{choose, on};

/// Returns whether a mutant is on, which none ever is.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn on(_name: &str) -> bool {
    false
}
