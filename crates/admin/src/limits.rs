//! Limits of connections: the port must answer probes even if a client opens connections without end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// The limits of a port. The defaults suit a few scrapers and probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of open connections, at least one. Further clients wait until a connection closes. Keep it well
    /// below the process's limit of file descriptors.
    pub connections_max: usize,
    /// The time limit for receiving a complete request, and for each step of sending its response. An idle connection is
    /// closed after this time. It must be longer than the slowest response takes to start.
    pub idle_timeout: Duration,
}

impl Default for ConnectionLimits {
    /// 64 connections and 30 seconds.
    fn default() -> Self {
        Self { connections_max: 64, idle_timeout: Duration::from_secs(30) }
    }
}

/// A listener that limits the number of connections and closes idle ones. Use it with [`axum::serve()`], which by
/// itself never closes an idle connection.
///
/// ```no_run
/// # async fn serve(listener: tokio::net::TcpListener, app: axum::Router) -> std::io::Result<()> {
/// use relevo_admin::{LimitedListener, ConnectionLimits};
///
/// let limits = ConnectionLimits { connections_max: 512, ..ConnectionLimits::default() };
/// axum::serve(LimitedListener::new(listener, limits), app).await
/// # }
/// ```
pub struct LimitedListener {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    idle_timeout: Duration,
}

impl LimitedListener {
    /// Applies limits to a listener.
    pub fn new(listener: TcpListener, limits: ConnectionLimits) -> Self {
        let permits = Semaphore::new(limits.connections_max.clamp(1, Semaphore::MAX_PERMITS));
        Self { listener, permits: Arc::new(permits), idle_timeout: limits.idle_timeout }
    }
}

impl Listener for LimitedListener {
    type Io = LimitedConnection<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed");
        let (stream, address) = Listener::accept(&mut self.listener).await;
        (LimitedConnection::new(stream, self.idle_timeout, Some(permit)), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that closes when nothing was written to it for too long. Only responses are written, so a client that
/// sends its request byte by byte does not extend the time.
pub struct LimitedConnection<S> {
    stream: S,
    idle_timeout: Duration,
    end: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<S> LimitedConnection<S> {
    fn new(stream: S, idle_timeout: Duration, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { stream, idle_timeout, end: Box::pin(sleep(idle_timeout)), _permit: permit }
    }

    /// Returns the result of an attempt, or an error if it is still pending after the time limit.
    fn or_timeout<T>(&mut self, context: &mut Context<'_>, attempt: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if attempt.is_ready() {
            return attempt;
        }
        self.end.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Restarts the time limit after a write: the client is receiving its response.
    fn wrote(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(_))) {
            let end = Instant::now() + self.idle_timeout;
            self.end.as_mut().reset(end);
        }
        self.or_timeout(context, written)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.or_timeout(context, read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedConnection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.or_timeout(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.or_timeout(context, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::advance;

    use super::*;

    const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_request_that_arrives_byte_by_byte_times_out() {
        let (mut client, server) = duplex(64);
        let mut server = LimitedConnection::new(server, IDLE_TIMEOUT, None);
        let start = Instant::now();
        while start.elapsed() <= IDLE_TIMEOUT {
            client.write_all(b"G").await.expect("there is room");
            advance(IDLE_TIMEOUT / 4).await;
            server.read_u8().await.expect("a byte");
        }
        let error = server.read_u8().await.expect_err("the time limit has passed");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < 2 * IDLE_TIMEOUT, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_may_send_more_requests_and_one_that_does_not_times_out() {
        let (mut client, server) = duplex(4);
        let mut server = LimitedConnection::new(server, IDLE_TIMEOUT, None);
        for _ in 0..5 {
            advance(IDLE_TIMEOUT / 2).await;
            server.write_all(b"fine").await.expect("the client reads");
            client.read_exact(&mut [0; 4]).await.expect("a response");
        }
        let error = server.write_all(b"more than there is room for").await.expect_err("the client does not read");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
