//! Shortcuts for cases with dead letters.

use async_trait::async_trait;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterAdmin, DeadLetterFilter, DeadLetterSummary, MarkAction, MarkRequest,
};
use relevo_core::store::StoreError;

#[async_trait]
pub(crate) trait DeadLetterCalls: DeadLetterAdmin {
    /// Redrives dead letters and returns how many.
    async fn redrive(&self, request: &MarkRequest) -> Result<u64, StoreError> {
        let request = MarkRequest { action: MarkAction::Redrive, ..request.clone() };
        self.mark_dead_letters(&request).await.map(|report| report.count)
    }

    /// Discards dead letters and returns how many.
    async fn discard(&self, request: &MarkRequest) -> Result<u64, StoreError> {
        let request = MarkRequest { action: MarkAction::Discard, ..request.clone() };
        self.mark_dead_letters(&request).await.map(|report| report.count)
    }

    /// The first `limit` summaries.
    async fn summaries(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetterSummary>, StoreError> {
        self.list_dead_letters(filter, None, limit).await.map(|page| page.letters)
    }

    /// One page after the other.
    async fn pages(&self, filter: &DeadLetterFilter, size: usize) -> Result<Vec<Vec<DeadLetterSummary>>, StoreError> {
        let mut pages = Vec::new();
        let mut after = None;
        loop {
            let page = self.list_dead_letters(filter, after.as_deref(), size).await?;
            pages.push(page.letters);
            after = page.next;
            if after.is_none() {
                return Ok(pages);
            }
        }
    }

    /// The only dead letter that matches, with its message.
    async fn one(&self, filter: &DeadLetterFilter) -> Result<DeadLetter, StoreError> {
        let mut letters = self.get_dead_letters(filter, 2).await?;
        assert_eq!(letters.len(), 1, "one dead letter per message: {letters:?}");
        Ok(letters.remove(0))
    }
}

impl<T: DeadLetterAdmin + ?Sized> DeadLetterCalls for T {}
