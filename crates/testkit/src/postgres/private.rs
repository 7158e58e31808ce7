use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::Arc;

use sqlx::postgres::PgConnectOptions;

use super::PgVersion;
use super::cluster::Cluster;
use super::database::{Database, Keep};
use crate::unblocked::unblocked;

/// A server for a single test, with `fsync` on, which the test may stop, kill and copy.
///
/// It stops, and its files are deleted, when the value is dropped, the test panics or the test process is killed.
pub struct Private {
    cluster: Arc<Cluster>,
}

impl Private {
    /// Starts a server with PostgreSQL's default settings.
    pub async fn start(version: PgVersion) -> Self {
        Self::start_with(version, &[]).await
    }

    /// Starts a server with additional settings, as in `postgresql.conf`: `&[("wal_level", "logical")]`.
    pub async fn start_with(version: PgVersion, settings: &[(&str, &str)]) -> Self {
        let settings: Vec<_> = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self::make(move || {
            let cluster = Cluster::create(version, &settings);
            cluster.start();
            cluster
        })
        .await
    }

    /// The version of the server.
    pub fn version(&self) -> PgVersion {
        self.cluster.version()
    }

    /// The port on loopback. It stays the same after every restart.
    pub fn port(&self) -> u16 {
        self.cluster.port()
    }

    /// The URL of the database `postgres`, as a superuser.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port())
    }

    /// The URL, parsed.
    pub fn options(&self) -> PgConnectOptions {
        PgConnectOptions::from_str(&self.url()).expect("the URL is made here")
    }

    /// Creates an empty database. It exists as long as the server's files.
    pub async fn database(&self) -> Database {
        Database::create(&self.url(), self.version(), Keep::WithServer).await
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.cluster.data()
    }

    /// The log of the server since its creation.
    pub fn log(&self) -> String {
        self.cluster.log()
    }

    /// Kills all processes of the server, like a crash. Returns when they have ended and the port is free.
    pub async fn kill9(&self) {
        self.blocking(Cluster::kill9).await;
    }

    /// Shuts the server down cleanly and disconnects its clients.
    pub async fn stop(&self) {
        self.blocking(Cluster::stop).await;
    }

    /// Starts a stopped or killed server again, on the same port. Returns when it accepts connections.
    pub async fn start_again(&self) {
        self.blocking(Cluster::start).await;
    }

    /// Copies the files of this stopped server and starts the copy on another port.
    pub async fn clone_stopped(&self) -> Self {
        self.derive(|original| {
            let copy = Cluster::copy_of(original);
            copy.start();
            copy
        })
        .await
    }

    /// Takes a physical backup of this running server. [`Private::start_again`] starts it, on another port. 15 only.
    pub async fn base_backup(&self) -> Self {
        self.derive(|original| Cluster::backup_of(original, &[])).await
    }

    /// Creates a streaming standby of this server and starts it on another port. Version 15 only.
    pub async fn standby(&self) -> Self {
        self.derive(|original| {
            let standby = Cluster::backup_of(original, &["--write-recovery-conf"]);
            standby.start();
            standby
        })
        .await
    }

    /// Promotes a standby to primary. Returns when it accepts writes.
    pub async fn promote(&self) {
        self.blocking(Cluster::promote).await;
    }

    async fn make(job: impl FnOnce() -> Cluster + Send + 'static) -> Self {
        let cluster = unblocked(job).await;
        Self { cluster: Arc::new(cluster) }
    }

    async fn derive(&self, job: impl FnOnce(&Cluster) -> Cluster + Send + 'static) -> Self {
        let cluster = Arc::clone(&self.cluster);
        Self::make(move || job(&cluster)).await
    }

    async fn blocking(&self, job: impl FnOnce(&Cluster) + Send + 'static) {
        let cluster = Arc::clone(&self.cluster);
        unblocked(move || job(&cluster)).await;
    }
}
