//! Secrets: values that nobody may see again, held so that they cannot slip out.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Bytes of a secret, at least: a shorter one could not be told from ordinary text in an output.
pub const SECRET_MIN: usize = 6;
/// Bytes of all secrets of one call together, at most: every output is searched for each of them.
pub const SECRETS_MAX: usize = 32 << 10;
/// Texts of one call that are secret, at most.
pub const SECRETS_COUNT_MAX: usize = 256;

/// One secret text. Shows as `***`, and its memory is wiped when it goes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// Returns the text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Something that may hold secrets: it is used like what it holds, but never shows. It is written
/// down only where it goes to the work itself.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden<T>(pub T);

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<T> std::ops::Deref for Hidden<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_used_and_never_shown() {
        let secret = Secret::new("correct horse");
        assert_eq!(secret.reveal(), "correct horse");
        let hidden = Hidden(vec![secret.clone()]);
        assert_eq!(hidden.len(), 1);
        assert_eq!(
            format!("{secret:?} {hidden:?} {:#?}", Some(&secret)),
            "*** *** Some(\n    ***,\n)"
        );
    }
}
