//! Errors of a store.
//!
//! A call that fails with [`StoreError::Unavailable`], or that is cancelled, may have taken effect.

use std::error::Error;
use std::time::Duration;

/// Errors of a store, classified by what the caller can do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is unreachable, or the connection broke during a call, which may have taken effect. The caller
    /// discards its state in memory and starts again.
    #[error("the database cannot be reached")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// Another transaction blocked this call, or the store limits its rate. The call changed nothing, and what the caller
    /// holds stays valid: only this call waits and is repeated.
    #[error("the database is busy")]
    Busy {
        /// The pause that the store requested.
        retry_after: Option<Duration>,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The server is a standby, whose snapshots do not list open transactions.
    #[error("the database is a standby")]
    Standby,
    /// The schema is missing, older or newer than this program.
    #[error("{reason}")]
    SchemaMismatch {
        /// The finding.
        reason: String,
    },
    /// The rows were written in another database: a restored dump, a copy or an upgraded cluster.
    #[error("{reason}")]
    WrongDatabase {
        /// The finding, and the command that fixes it.
        reason: String,
    },
    /// The destination is disabled or does not exist, or a grant is missing.
    #[error("{reason}")]
    Refused {
        /// The refused request.
        reason: String,
    },
    /// The database returned an error or a reply that the store does not expect.
    #[error("unexpected response from the database")]
    Unexpected(#[source] Box<dyn Error + Send + Sync>),
}

impl StoreError {
    /// Whether a later retry may succeed.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Busy { .. } | Self::Standby | Self::Unexpected(_) => true,
            Self::SchemaMismatch { .. } | Self::WrongDatabase { .. } | Self::Refused { .. } => false,
        }
    }
}
