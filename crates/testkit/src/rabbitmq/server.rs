use super::Vhost;
use crate::unblocked::unblocked;

/// A server that all tests share, with the management API. Tests must not stop it; each test creates its own [`Vhost`].
#[derive(Clone, Debug)]
pub struct Server {
    amqp_url: String,
    management_url: String,
}

impl Server {
    /// The server from `RELEVO_TEST_RABBITMQ_URL` and `RELEVO_TEST_RABBITMQ_MANAGEMENT_URL`. Panics if one is not set.
    pub fn shared() -> Self {
        let url = |variable| {
            std::env::var(variable).unwrap_or_else(|_| {
                panic!(
                    "no RabbitMQ: run `cargo xtask test`, or `cargo xtask services up` and export what it prints, or set `{variable}`"
                )
            })
        };
        Self { amqp_url: url("RELEVO_TEST_RABBITMQ_URL"), management_url: url("RELEVO_TEST_RABBITMQ_MANAGEMENT_URL") }
    }

    /// The URL of the server, without a virtual host: `amqp://guest:guest@127.0.0.1:5672`.
    pub fn amqp_url(&self) -> &str {
        &self.amqp_url
    }

    /// The URL of its management API: `http://guest:guest@127.0.0.1:15672`.
    pub fn management_url(&self) -> &str {
        &self.management_url
    }

    /// Creates a virtual host. It is deleted with the value, which closes all connections to it.
    pub async fn vhost(&self) -> Vhost {
        let vhost = Vhost::new(&self.amqp_url, Some(self.management_url.clone()), true);
        unblocked(move || {
            vhost.create();
            vhost
        })
        .await
    }
}
