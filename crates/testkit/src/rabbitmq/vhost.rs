use crate::http;

/// A virtual host for a single test.
#[derive(Debug)]
pub struct Vhost {
    name: String,
    server_url: String,
    management_url: Option<String>,
    drops: bool,
}

impl Vhost {
    /// Chooses a name. The virtual host is not created yet.
    pub(super) fn new(server_url: &str, management_url: Option<String>, drops: bool) -> Self {
        let name = format!("relevo_test_{}", uuid::Uuid::new_v4().simple());
        Self { name, server_url: server_url.trim_end_matches('/').to_owned(), management_url, drops }
    }

    /// Creates it through the management API.
    pub(super) fn create(&self) {
        let url = self.management_url();
        match http::request(url, "PUT", &format!("/api/vhosts/{}", self.name), "{}") {
            Ok((200..=299, _)) => {}
            other => panic!(
                "cannot create a virtual host (does the RabbitMQ of `cargo xtask services up` still run?): {other:?}"
            ),
        }
    }

    /// Its name, unique across all servers. It needs no escaping in a URL.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL.
    pub fn amqp_url(&self) -> String {
        format!("{}/{}", self.server_url, self.name)
    }

    /// The URL of the server's management API, without the virtual host. Panics if the server has no management API.
    pub fn management_url(&self) -> &str {
        self.management_url.as_deref().expect("the server was started with the management API")
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        if self.drops {
            // A leftover virtual host does no harm, and a panic in `drop` would hide the test's own.
            http::request(self.management_url(), "DELETE", &format!("/api/vhosts/{}", self.name), "").ok();
        }
    }
}
