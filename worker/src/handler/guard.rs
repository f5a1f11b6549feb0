//! The guard around a handler: what breaks inside of it is told to nobody but this process.
//!
//! A panic becomes a fault without its text, since that may hold anything: a path, a secret, a
//! control sequence. The text goes to standard error of this process, escaped and bounded.

use std::cell::RefCell;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use reeve_protocol::fault::Stage;
use reeve_protocol::{Code, Fault, SideEffect};
use serde_json::Value;

use super::{Ctx, Handler};

/// Characters of a panic's text that are told.
const PANIC_CHARS: usize = 2_000;

thread_local! {
    /// The call that this thread is in, if any.
    static INSIDE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// How a handler's call came to its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Returned {
    /// It returned a value.
    Value(Value),
    /// It returned a fault.
    Fault(Box<Fault>),
    /// It broke.
    Panicked,
}

impl Returned {
    /// Returns the value or the fault that everybody may see.
    pub fn into_result(self, ctx: &Ctx) -> Result<Value, Fault> {
        match self {
            Self::Value(value) => Ok(value),
            Self::Fault(fault) => Err(*fault),
            Self::Panicked => Err(broke().about(ctx.name())),
        }
    }
}

/// Returns the fault of a handler that panicked.
pub(crate) fn broke() -> Fault {
    Fault::new(Code::Internal, "the handler broke; what it was doing may be half done")
        .at(Stage::Execute)
        .because("panic")
        .with_effect(SideEffect::Unknown)
        .hint("the process that ran it has written why to its standard error")
}

/// Calls a handler; a panic ends here.
pub(super) fn call(handler: &Handler, ctx: &Ctx, input: Value) -> Returned {
    install();
    let name = format!("{} ({})", handler.id(), ctx.name());
    // A handler may call another one itself.
    let outer = INSIDE.replace(Some(name));
    // Nothing of what the handler had in its hands is looked at again.
    let returned = panic::catch_unwind(AssertUnwindSafe(|| handler.run(ctx, input)));
    INSIDE.set(outer);
    match returned {
        Ok(Ok(value)) => Returned::Value(value),
        Ok(Err(fault)) => Returned::Fault(Box::new(fault)),
        Err(payload) => {
            // Dropping what was thrown may panic again.
            std::mem::forget(payload);
            Returned::Panicked
        }
    }
}

/// Has panics of handlers written in a form that no terminal acts on; all others as ever.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let inside = INSIDE.try_with(|inside| inside.borrow().clone()).ok().flatten();
            match inside {
                Some(name) => {
                    let place = info.location().map(ToString::to_string).unwrap_or_default();
                    let line = told(&name, &place, info.payload_as_str().unwrap_or("?"));
                    // Nobody may be there to read it.
                    let _ = writeln!(std::io::stderr(), "{line}");
                }
                None => before(info),
            }
        }));
    });
}

fn told(name: &str, place: &str, text: &str) -> String {
    let mut shown: String = text.chars().take(PANIC_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(PANIC_CHARS).is_some() {
        shown.push('…');
    }
    format!("reeve: handler {name} panicked at {place}: \"{shown}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_in_one_inert_and_bounded_line() {
        let line = told("a.b (x)", "src/a.rs:1:2", "bad\n\u{1b}]0;evil\u{7}\u{202e}");
        assert!(!line.contains(['\n', '\u{1b}', '\u{7}', '\u{202e}']), "{line}");
        assert!(line.starts_with("reeve: handler a.b (x) panicked at src/a.rs:1:2: \"bad\\n"));
        let at_bound = told("a", "b", &"x".repeat(PANIC_CHARS));
        let over = told("a", "b", &"x".repeat(PANIC_CHARS + 1));
        assert!(!at_bound.contains('…') && over.ends_with("x…\""), "{over}");
    }
}
