//! A TCP proxy that a test can cut, block, freeze, stall and slow down. It can also cut a stream after N bytes.

mod lane;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lane::{Lane, Pace};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The direction in which bytes flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the server.
    ToServer,
    /// From the server to clients.
    ToClient,
}

/// A proxy on loopback in front of an address. It stops and closes its connections when it is dropped.
pub struct CutProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

struct Shared {
    /// Current connections hold receivers; `true` makes them end. A cut replaces the sender.
    alive: Mutex<watch::Sender<bool>>,
    blocked: watch::Sender<bool>,
    to_server: Lane,
    to_client: Lane,
}

impl CutProxy {
    /// Starts a proxy on a free port.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            alive: Mutex::new(watch::Sender::new(false)),
            blocked: watch::Sender::new(false),
            to_server: Lane::default(),
            to_client: Lane::default(),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, upstream, Arc::clone(&shared)));
        Self { addr, shared, _accepting: accepting }
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Drops all current connections on both sides, and returns when they are closed. New connections are accepted.
    pub async fn cut(&self) {
        self.shared.cut().closed().await;
    }

    /// Cuts all connections, and from now on closes every new connection at once.
    pub async fn block(&self) {
        self.shared.blocked.send_replace(true);
        self.cut().await;
    }

    /// Lets new connections through again.
    pub fn unblock(&self) {
        self.shared.blocked.send_replace(false);
    }

    /// Keeps connections and accepts new ones, but forwards nothing until [`CutProxy::thaw`].
    pub fn freeze(&self) {
        self.stall(Direction::ToServer);
        self.stall(Direction::ToClient);
    }

    /// Forwards the bytes that were held back in both directions, then continues normally.
    pub fn thaw(&self) {
        self.flow(Direction::ToServer);
        self.flow(Direction::ToClient);
    }

    /// Holds back one direction until [`CutProxy::flow`], while the other continues. After a cut, held bytes are lost.
    ///
    /// To lose the confirmation of a message that the server stored: stall [`Direction::ToClient`], publish, wait
    /// [until it is held](CutProxy::until_held), and cut.
    pub fn stall(&self, direction: Direction) {
        self.shared.lane(direction).stall();
    }

    /// Forwards the bytes that a stall held back, then continues normally.
    pub fn flow(&self, direction: Direction) {
        self.shared.lane(direction).flow();
    }

    /// Waits until a stalled direction holds bytes that arrived after the last stall began.
    pub async fn until_held(&self, direction: Direction) {
        self.shared.lane(direction).until_held().await;
    }

    /// Delays every chunk by `each`, in both directions, from now on. Zero removes the delay.
    ///
    /// Chunks are delayed one after the other, as by a slow machine. A long line would delay them in parallel.
    pub fn delay(&self, each: Duration) {
        self.each_pace(|pace| pace.delay = each);
    }

    /// Limits each direction of each connection to this many bytes per second, from now on.
    pub fn throttle(&self, bytes_per_second: u32) {
        assert!(bytes_per_second > 0, "use `stall` to forward nothing");
        self.each_pace(|pace| pace.bytes_per_second = Some(bytes_per_second));
    }

    /// Removes the limit.
    pub fn unthrottle(&self) {
        self.each_pace(|pace| pace.bytes_per_second = None);
    }

    /// Lets exactly `bytes` more bytes pass in one direction, summed over all connections, then cuts once.
    pub fn cut_after(&self, direction: Direction, bytes: u64) {
        self.shared.lane(direction).limit(bytes);
    }

    fn each_pace(&self, change: impl Fn(&mut Pace)) {
        self.shared.to_server.change_pace(&change);
        self.shared.to_client.change_pace(&change);
    }
}

impl Shared {
    fn lane(&self, direction: Direction) -> &Lane {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    /// Makes the current connections end. The returned sender is closed when they have ended.
    fn cut(&self) -> watch::Sender<bool> {
        let old = {
            let mut alive = self.alive.lock().expect("no holder panics");
            std::mem::replace(&mut *alive, watch::Sender::new(false))
        };
        old.send_replace(true);
        old
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let ended = shared.alive.lock().expect("no holder panics").subscribe();
                // Checked after subscribing: a block in between then cuts this connection.
                if !*shared.blocked.borrow() {
                    connections.spawn(carry(client, upstream, ended, Arc::clone(&shared)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn carry(client: TcpStream, upstream: SocketAddr, mut ended: watch::Receiver<bool>, shared: Arc<Shared>) {
    let both_ways = async {
        let server = TcpStream::connect(upstream).await?;
        // Without this, the proxy would delay small packets, which the network does not.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let cut = || drop(shared.cut());
        tokio::try_join!(
            shared.to_server.pump(from_client, to_server, cut),
            shared.to_client.pump(from_server, to_client, cut)
        )
    };
    tokio::select! {
        // Checked first: after a cut, no more bytes may pass, even if they are ready.
        biased;
        _ = ended.wait_for(|ended| *ended) => {}
        _ = both_ways => {}
    }
}
