//! Operator commands for an outbox.

use async_trait::async_trait;
use relevo_core::dead_letters::{DeadLetter, DeadLetterAdmin, DeadLetterFilter, MarkRequest};
use relevo_core::outbox::admin::{OutboxAdmin, StartFrom};
use relevo_core::store::StoreError;
use serde_json::json;

use crate::queries::{self, column, json_literal, literal};
use crate::store::Store;

impl Store {
    /// Adopts the outbox in this database after an upgrade, or in a copy that must publish from now on.
    pub async fn adopt(&self) -> Result<(), StoreError> {
        self.operator_connection.query(format!("SELECT {}.adopt()", self.schema)).await?;
        Ok(())
    }

    /// Assigns transaction ids of this server to all rows after a restore from a dump. Returns the number of messages
    /// that will be sent.
    pub async fn rebase(&self) -> Result<i64, StoreError> {
        let rows = self.operator_connection.query(format!("SELECT {}.rebase()", self.schema)).await?;
        Ok(rows.first().map(|row| column(row, 0)).transpose()?.unwrap_or(0))
    }

    async fn call_function(&self, call: String) -> Result<bool, StoreError> {
        let rows = self.operator_connection.query(format!("SELECT {}.{call}", self.schema)).await?;
        Ok(rows.first().map(|row| column(row, 0)).transpose()?.unwrap_or(false))
    }

    async fn mark_dead_letters(&self, function: &str, mark: &MarkRequest) -> Result<u64, StoreError> {
        let ids: Vec<_> = mark.filter.ids.iter().map(ToString::to_string).collect();
        let filter = json!({ "ids": ids, "key": mark.filter.key, "route": mark.filter.route });
        let sql = format!(
            "SELECT {}.{function}({}, {}, {}, {}, {})",
            self.schema,
            literal(&self.destination),
            json_literal(&filter),
            literal(&mark.by),
            literal(&mark.reason),
            mark.dry_run,
        );
        let rows = self.operator_connection.query(sql).await?;
        let marked: i64 = rows.first().map(|row| column(row, 0)).transpose()?.unwrap_or(0);
        Ok(marked.unsigned_abs())
    }
}

#[async_trait]
impl OutboxAdmin for Store {
    async fn add_destination(&self, shards: u16, start: StartFrom) -> Result<bool, StoreError> {
        let start = match start {
            StartFrom::Now => "now",
            StartFrom::Oldest => "oldest",
        };
        self.call_function(format!("add_destination({}, {shards}, '{start}')", literal(&self.destination))).await
    }

    async fn remove_destination(&self) -> Result<bool, StoreError> {
        self.call_function(format!("remove_destination({})", literal(&self.destination))).await
    }

    async fn switch(&self, on: bool) -> Result<bool, StoreError> {
        let function = if on { "enable_destination" } else { "disable_destination" };
        self.call_function(format!("{function}({})", literal(&self.destination))).await
    }

    async fn regroup(&self, shards: u16) -> Result<bool, StoreError> {
        self.call_function(format!("reshard_destination({}, {shards})", literal(&self.destination))).await
    }
}

#[async_trait]
impl DeadLetterAdmin for Store {
    async fn list_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let sql = queries::select_dead_letters(&self.schema, &self.destination, filter, limit);
        Ok(queries::dead_letters(self.operator_connection.copy_out(sql).await?)?)
    }

    async fn redrive(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        self.mark_dead_letters("redrive", mark).await
    }

    async fn discard(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        self.mark_dead_letters("discard", mark).await
    }
}
