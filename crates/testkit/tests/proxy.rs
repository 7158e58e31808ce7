//! The proxy's promises, against an echo.

use std::time::Duration;

use relevo_testkit::proxy::CutProxy;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

async fn echo(tasks: &mut JoinSet<()>) -> CutProxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let addr = listener.local_addr().expect("it is bound");
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut reader, mut writer) = client.split();
                tokio::io::copy(&mut reader, &mut writer).await.ok();
            });
        }
    });
    CutProxy::start(addr).await
}

async fn answers(client: &mut TcpStream) -> bool {
    let mut answer = [0; 4];
    client.write_all(b"ping").await.is_ok() && client.read_exact(&mut answer).await.is_ok() && answer == *b"ping"
}

#[tokio::test]
async fn a_cut_ends_old_connections_and_takes_new_ones() {
    let mut tasks = JoinSet::new();
    let proxy = echo(&mut tasks).await;
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(answers(&mut old).await);

    proxy.cut().await;
    assert!(!answers(&mut old).await);
    assert!(answers(&mut TcpStream::connect(proxy.addr()).await.unwrap()).await);
}

#[tokio::test]
async fn a_blocked_proxy_lets_nobody_through_until_unblocked() {
    let mut tasks = JoinSet::new();
    let proxy = echo(&mut tasks).await;
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(answers(&mut old).await);

    proxy.block().await;
    assert!(!answers(&mut old).await);
    assert!(!answers(&mut TcpStream::connect(proxy.addr()).await.unwrap()).await);
    proxy.unblock();
    assert!(answers(&mut TcpStream::connect(proxy.addr()).await.unwrap()).await);
}

#[tokio::test]
async fn a_frozen_connection_answers_when_thawed() {
    let mut tasks = JoinSet::new();
    let proxy = echo(&mut tasks).await;
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(answers(&mut client).await);

    proxy.freeze();
    // Nothing can be waited for when nothing must come; a slow machine can only make this pass too easily.
    tokio::time::timeout(Duration::from_millis(100), answers(&mut client)).await.unwrap_err();
    proxy.thaw();
    let mut late = [0; 4];
    client.read_exact(&mut late).await.unwrap();
    assert_eq!(late, *b"ping");
}
