//! Tokens: what a caller proves itself with where the system cannot say who it is.
//!
//! One secret per state directory, in a file of this user's alone that outlives brokers. A token
//! of less scope is the secret's own signature under the scopes it names, so none is listed
//! anywhere and a new secret ends all of them. Compares in constant time and never shows a
//! secret.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use hmac::{Hmac, Mac};
use rustix::fs::{Mode, OFlags};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Hexadecimal digits of a secret: 256 bits.
const SECRET_DIGITS: usize = 64;
/// Characters of a token of less scope, at most.
const TOKEN_MAX: usize = 256;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file is not what this user's broker wrote.
    #[error("{} {why}", path.display())]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The system said no.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What came of it.
        #[source]
        source: io::Error,
    },
}

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Scope {
    /// Read everything.
    Observe = 1,
    /// Start and stop executions.
    Start = 2,
    /// Report executions that run elsewhere.
    Report = 4,
    /// Answer what a person is asked.
    Confirm = 8,
    /// Everything else.
    Admin = 16,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 5] =
        [Self::Observe, Self::Start, Self::Report, Self::Confirm, Self::Admin];

    /// Returns its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Start => "start",
            Self::Report => "report",
            Self::Confirm => "confirm",
            Self::Admin => "admin",
        }
    }
}

/// A set of scopes, which is never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Everything.
    pub const ALL: Self = Self(31);
    /// What a person's own pages may: everything but to report for others and to administer.
    pub const PAGES: Self = Self(Scope::Observe as u8 | Scope::Start as u8 | Scope::Confirm as u8);

    /// Returns whether a scope is among them.
    pub fn allow(self, scope: Scope) -> bool {
        self.0 & scope as u8 != 0
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> =
            Scope::ALL.into_iter().filter(|scope| self.allow(*scope)).map(Scope::as_str).collect();
        f.write_str(&words.join(","))
    }
}

impl FromStr for Scopes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut bits = 0;
        for word in text.split(',') {
            let scope = Scope::ALL.into_iter().find(|scope| scope.as_str() == word);
            bits |= scope
                .ok_or_else(|| format!("{word:?} is no scope; there are {}", Scopes::ALL))?
                as u8;
        }
        Ok(Self(bits))
    }
}

/// The secret of a state directory. Its memory is wiped when it goes.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Zeroizing<String>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

impl Token {
    /// Returns the file of a state directory.
    pub fn file(state_dir: &Path) -> PathBuf {
        state_dir.join("token")
    }

    /// Reads the secret, or makes one where there is none.
    ///
    /// # Errors
    ///
    /// When the file is not this user's alone, or cannot be read or made.
    pub fn ensure(state_dir: &Path) -> Result<Self, TokenError> {
        let path = Self::file(state_dir);
        if let Some((token, _)) = read(&path)? {
            return Ok(token);
        }
        match create(&path, &path) {
            Ok(token) => Ok(token),
            // Somebody was faster; theirs counts.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(&path)?
                .map(|(token, _)| token)
                .ok_or(TokenError::Unsafe { path, why: "was removed while it was read" }),
            Err(source) => Err(TokenError::Io { what: "make", path, source }),
        }
    }

    /// Makes a new secret in place of the old one, which ends every token that there is.
    ///
    /// # Errors
    ///
    /// When the file cannot be replaced.
    pub fn rotate(state_dir: &Path) -> Result<Self, TokenError> {
        let path = Self::file(state_dir);
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let _ = fs::remove_file(&temporary);
        create(&temporary, &path)
            .and_then(|token| fs::rename(&temporary, &path).map(|()| token))
            .map_err(|source| TokenError::Io { what: "replace", path, source })
    }

    /// Returns the secret itself, which allows everything.
    pub fn whole(&self) -> &str {
        &self.0
    }

    /// Makes a token that allows these scopes only.
    ///
    /// # Errors
    ///
    /// When the system has no random numbers.
    pub fn scoped(&self, scopes: Scopes) -> io::Result<String> {
        let signed = format!("{scopes}.{}", random_hex(8)?);
        let signature = self.sign("scope", &signed);
        Ok(format!("{signed}.{signature}"))
    }

    /// Returns what a token allows; `None` when it is none of this secret.
    pub fn check(&self, presented: &str) -> Option<Scopes> {
        if presented.len() > TOKEN_MAX {
            return None;
        }
        if equal(presented.as_bytes(), self.0.as_bytes()) {
            return Some(Scopes::ALL);
        }
        let (signed, signature) = presented.rsplit_once('.')?;
        let expected = self.sign("scope", signed);
        if !equal(signature.as_bytes(), expected.as_bytes()) {
            return None;
        }
        signed.split_once('.')?.0.parse().ok()
    }

    /// Makes the value of a cookie that lets its holder read pages until a time, in seconds since
    /// 1970.
    ///
    /// # Errors
    ///
    /// When the system has no random numbers.
    pub fn cookie(&self, until: i64) -> io::Result<String> {
        let signed = format!("{until}.{}", random_hex(8)?);
        let signature = self.sign("cookie", &signed);
        Ok(format!("{signed}.{signature}"))
    }

    /// Returns whether a cookie's value is good at a time, in seconds since 1970.
    pub fn is_cookie(&self, presented: &str, now: i64) -> bool {
        let Some((signed, signature)) =
            presented.rsplit_once('.').filter(|_| presented.len() <= TOKEN_MAX)
        else {
            return false;
        };
        let until = signed.split_once('.').and_then(|(until, _)| until.parse::<i64>().ok());
        equal(signature.as_bytes(), self.sign("cookie", signed).as_bytes())
            && until.is_some_and(|until| until > now)
    }

    /// Returns the proof that who answers knows the secret, for a client's own nonce.
    pub fn proof(&self, nonce: &str) -> String {
        self.sign("instance", nonce)
    }

    /// Signs a text for one use; a signature for one use is none for another.
    fn sign(&self, usage: &str, text: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()).expect("any length fits");
        mac.update(usage.as_bytes());
        mac.update(b"\n");
        mac.update(text.as_bytes());
        hex(&mac.finalize().into_bytes())
    }
}

/// The secret as it stands in its file now. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Keys(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    held: Mutex<(Token, Option<Inode>)>,
}

impl Keys {
    /// Reads the secret of a state directory, or makes one.
    ///
    /// # Errors
    ///
    /// As [`Token::ensure`].
    pub fn open(state_dir: &Path) -> Result<Self, TokenError> {
        let token = Token::ensure(state_dir)?;
        let path = Token::file(state_dir);
        let inode = inode(&path);
        Ok(Self(Arc::new(Inner { path, held: Mutex::new((token, inode)) })))
    }

    /// Returns the secret; a file that was replaced is read again, and without one the last
    /// secret stays.
    pub fn token(&self) -> Token {
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        let now = inode(&self.0.path);
        if now.is_some() && now != held.1 {
            match read(&self.0.path) {
                Ok(Some((token, seen))) => *held = (token, Some(seen)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "the token cannot be read; the last one stays")
                }
            }
        }
        held.0.clone()
    }
}

/// A file's device and number: another file under the same name has others.
type Inode = (u64, u64);

fn inode(path: &Path) -> Option<Inode> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn read(path: &Path) -> Result<Option<(Token, Inode)>, TokenError> {
    let unsafe_file = |why| TokenError::Unsafe { path: path.to_owned(), why };
    let failed = |source| TokenError::Io { what: "read", path: path.to_owned(), source };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(descriptor) => File::from(descriptor),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => {
            return Err(unsafe_file("is a link, and reeve follows none; remove it"));
        }
        Err(error) => return Err(failed(error.into())),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(unsafe_file("is no file of this user; remove it, reeve makes its own"));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(unsafe_file("can be read by others: run `reeve token --rotate`"));
    }
    let mut text = Zeroizing::new(String::with_capacity(1_024));
    file.take(1_024).read_to_string(&mut text).map_err(failed)?;
    let secret = text.trim_end();
    if secret.len() != SECRET_DIGITS || !secret.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(unsafe_file("holds no token: run `reeve token --rotate`"));
    }
    Ok(Some((Token(Zeroizing::new(secret.to_owned())), (metadata.dev(), metadata.ino()))))
}

/// Makes the file, whole or not at all where `path` is not yet `target`.
fn create(path: &Path, target: &Path) -> io::Result<Token> {
    let secret = Zeroizing::new(random_hex(SECRET_DIGITS / 2)?);
    // Written beside and linked, so that nobody ever reads half a secret.
    let own = target.with_extension(format!("{}.new", std::process::id()));
    let _ = fs::remove_file(&own);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(&own, flags, Mode::RUSR | Mode::WUSR)?);
    let made = file
        .write_all(secret.as_bytes())
        .and_then(|()| file.write_all(b"\n"))
        .and_then(|()| fs::hard_link(&own, path))
        .map(|()| Token(secret));
    let _ = fs::remove_file(&own);
    made
}

/// Returns random bytes in hexadecimal digits.
pub(crate) fn random_hex(bytes: usize) -> io::Result<String> {
    let mut random = Zeroizing::new(vec![0; bytes]);
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(hex(&random))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares without telling by its time where a difference is.
fn equal(left: &[u8], right: &[u8]) -> bool {
    let differs = left.iter().zip(right).fold(0, |differs, (a, b)| differs | (a ^ b));
    std::hint::black_box(differs) == 0 && left.len() == right.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_made_once_and_is_this_users_alone() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::ensure(dir.path()).unwrap();
        assert_eq!(Token::ensure(dir.path()).unwrap(), token);
        let mode = fs::metadata(Token::file(dir.path())).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(format!("{token:?}"), "Token(***)");
        let keys = format!("{:?}", Keys::open(dir.path()).unwrap());
        assert!(keys.contains("Token(***)") && !keys.contains(token.whole()), "{keys}");
    }

    #[test]
    fn a_token_of_less_scope_allows_that_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::ensure(dir.path()).unwrap();
        let scoped = token.scoped("observe,start".parse().unwrap()).unwrap();
        let scopes = token.check(&scoped).unwrap();
        assert!(scopes.allow(Scope::Observe) && scopes.allow(Scope::Start));
        assert!(!scopes.allow(Scope::Report) && !scopes.allow(Scope::Admin));
        assert_eq!(token.check(token.whole()), Some(Scopes::ALL));
        let widened = scoped.replacen("observe,start", "observe,start,report,confirm,admin", 1);
        let proof = format!("observe.{}", token.proof("observe"));
        for wrong in ["", ".", "x", "observe", widened.as_str(), proof.as_str(), &scoped[1..]] {
            assert_eq!(token.check(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_new_secret_ends_every_token_also_for_a_broker_that_lives() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path()).unwrap();
        let old = keys.token();
        let scoped = old.scoped(Scopes::ALL).unwrap();
        let new = Token::rotate(dir.path()).unwrap();
        assert_eq!(keys.token(), new);
        assert_eq!(keys.token().check(&scoped), None);
        assert_eq!(keys.token().check(old.whole()), None);
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_a_link_is_not_taken() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = Token::file(dir.path());
        fs::write(&path, "a".repeat(64)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Token::ensure(dir.path()).is_err());
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(Token::ensure(dir.path()).is_err());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "short").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Token::ensure(dir.path()).is_err());
        assert!(Token::rotate(dir.path()).is_ok());
        assert!(Token::ensure(dir.path()).is_ok());
    }
}
