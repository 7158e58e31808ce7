//! Starts private servers, prints their directories, and waits until it is killed. A test checks that nothing is left.

use std::io::Write as _;

use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{self, Private};
use relevo_testkit::rabbitmq;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let nats = Private::start(NatsVersion::V2_9, nats::Settings::new()).await;
    let rabbitmq = rabbitmq::Private::start().await;
    let mut output = std::io::stdout();
    writeln!(output, "{}\n{}", nats.directory().display(), rabbitmq.directory().display())?;
    output.flush()?;
    std::future::pending().await
}
