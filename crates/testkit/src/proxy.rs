//! A TCP proxy that a test can cut, block and freeze.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const CHUNK_BYTES: usize = 16 * 1024;

/// A proxy on loopback in front of an address; it ends, with its connections, when it is dropped.
pub struct CutProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

struct Shared {
    /// The connections of now hold receivers; `true` tells them to end. A cut replaces it.
    alive: Mutex<watch::Sender<bool>>,
    blocked: watch::Sender<bool>,
    frozen: watch::Sender<bool>,
}

impl CutProxy {
    /// Starts one on a free port.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            alive: Mutex::new(watch::Sender::new(false)),
            blocked: watch::Sender::new(false),
            frozen: watch::Sender::new(false),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, upstream, Arc::clone(&shared)));
        Self { addr, shared, _accepting: accepting }
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Drops all current connections, on both sides; returns when they are gone. New ones are welcome.
    pub async fn cut(&self) {
        let old = {
            let mut alive = self.shared.alive.lock().expect("no holder panics");
            std::mem::replace(&mut *alive, watch::Sender::new(false))
        };
        old.send_replace(true);
        old.closed().await;
    }

    /// Cuts, and from now on closes every new connection at once.
    pub async fn block(&self) {
        self.shared.blocked.send_replace(true);
        self.cut().await;
    }

    /// Lets new connections through again.
    pub fn unblock(&self) {
        self.shared.blocked.send_replace(false);
    }

    /// Keeps connections, and accepts new ones, but forwards nothing until [`CutProxy::thaw`].
    pub fn freeze(&self) {
        self.shared.frozen.send_replace(true);
    }

    /// Forwards what was held back, and goes on.
    pub fn thaw(&self) {
        self.shared.frozen.send_replace(false);
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let ended = shared.alive.lock().expect("no holder panics").subscribe();
                // Looked at after subscribing: a block in between then cuts it.
                if !*shared.blocked.borrow() {
                    connections.spawn(carry(client, upstream, ended, shared.frozen.subscribe()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn carry(
    client: TcpStream,
    upstream: SocketAddr,
    mut ended: watch::Receiver<bool>,
    frozen: watch::Receiver<bool>,
) {
    let both_ways = async move {
        let server = TcpStream::connect(upstream).await?;
        // A delay of small packets would be the proxy's, not the network's.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::try_join!(pump(from_client, to_server, frozen.clone()), pump(from_server, to_client, frozen))
    };
    tokio::select! {
        _ = ended.wait_for(|ended| *ended) => {}
        _ = both_ways => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut frozen: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let length = from.read(&mut chunk).await?;
        // A sender that is gone means the proxy is going too, and this task with it.
        if frozen.wait_for(|frozen| !frozen).await.is_err() {
            return Ok(());
        }
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..length]).await?;
    }
}
