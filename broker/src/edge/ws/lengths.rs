//! A client's frames, looked at as they come: a length is written as short as it can be.
//!
//! RFC 6455 (5.2) demands it, and the library behind does not ask for it: one frame that can be
//! written in several ways is one that two readers may read in two ways.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a frame's head up to its mask, at most.
const HEAD_MAX: usize = 10;
const MASK_BYTES: u64 = 4;

/// Where in its frames a stream is.
#[derive(Debug, Default)]
struct Frames {
    head: [u8; HEAD_MAX],
    seen: usize,
    /// Bytes until the next head.
    rest: u64,
}

impl Frames {
    /// Takes the next bytes; returns whether every length in them is as short as it can be.
    fn take(&mut self, mut bytes: &[u8]) -> bool {
        while let Some((first, after)) = bytes.split_first() {
            if self.rest > 0 {
                let skipped =
                    usize::try_from(self.rest).map_or(bytes.len(), |n| n.min(bytes.len()));
                self.rest -= skipped as u64;
                bytes = &bytes[skipped..];
                continue;
            }
            self.head[self.seen] = *first;
            self.seen += 1;
            bytes = after;
            if self.seen < 2 {
                continue;
            }
            let short = self.head[1] & 0x7f;
            let (wide, least) = match short {
                126 => (2, 126),
                127 => (8, 1 << 16),
                _ => (0, 0),
            };
            if self.seen < 2 + wide {
                continue;
            }
            let long =
                self.head[2..2 + wide].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            let length = if wide == 0 { u64::from(short) } else { long };
            if length < least {
                return false;
            }
            let masked = self.head[1] & 0x80 != 0;
            self.rest = length.saturating_add(if masked { MASK_BYTES } else { 0 });
            self.seen = 0;
        }
        true
    }
}

/// A stream of a client's frames.
pub struct Lengths<S> {
    stream: S,
    frames: Frames,
}

impl<S> Lengths<S> {
    /// Looks at what `stream` brings.
    pub fn of(stream: S) -> Self {
        Self { stream, frames: Frames::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lengths<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if self.frames.take(&buffer.filled()[before..]) {
            return Poll::Ready(Ok(()));
        }
        let message = "a frame's length takes more bytes than it must";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, message)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Lengths<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(head: &[u8], payload: usize) -> Vec<u8> {
        [head, &[0; 4], &vec![b'x'; payload]].concat()
    }

    #[test]
    fn a_length_is_as_short_as_it_can_be_wherever_the_stream_is_cut() {
        let short = frame(&[0x81, 0x80 | 125], 125);
        let two = frame(&[0x81, 0xfe, 0, 126], 126);
        let eight = frame(&[0x81, 0xff, 0, 0, 0, 0, 0, 1, 0, 0], 1 << 16);
        let good = [short.clone(), two.clone(), vec![0x89, 0x00], eight, short].concat();
        for size in [1, 2, 3, 7, 1_000, good.len()] {
            let mut frames = Frames::default();
            assert!(good.chunks(size).all(|piece| frames.take(piece)), "pieces of {size}");
        }
        for bad in [
            frame(&[0x81, 0xfe, 0, 125], 125),
            frame(&[0x81, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff], 0),
        ] {
            let stream = [two.clone(), bad].concat();
            for size in [1, 5, stream.len()] {
                let mut frames = Frames::default();
                assert!(!stream.chunks(size).all(|piece| frames.take(piece)), "pieces of {size}");
            }
        }
    }
}
