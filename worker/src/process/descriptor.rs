//! Descriptors that the runtime watches.
//!
//! Owns the registration of our ends of pipes, terminals and pidfds, and the one way to read
//! from them.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime watch a descriptor that does not block.
#[expect(unsafe_code, reason = "tokio cannot see that an owned descriptor stays open and itself")]
pub(crate) fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `OwnedFd` owns its descriptor and always returns that one; the `AsyncFd` owns it
    // from here on, and hands out only shared references, through which it cannot be replaced.
    let watched = unsafe { AsyncFd::register_with_interest(fd, interest) };
    Ok(watched?)
}

/// Reads once: how much there was, nothing yet, or 0 at the end.
///
/// A terminal whose last user is gone says so with an error; any other error is an end alike.
pub(crate) fn read(fd: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> Option<usize> {
    let read = fd.try_io(Interest::READABLE, |fd| {
        rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut *buffer)).map_err(io::Error::from)
    });
    match read {
        Ok(length) => Some(length),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(_) => Some(0),
    }
}
