//! Handlers that users write, and their registration by message type.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use relevo_core::AfterDead;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use serde::de::DeserializeOwned;

use crate::error::{HandlerError, HandlerResult, Verdict};
use crate::incoming::Incoming;
use crate::tx::Tx;

/// A handler with state whose effect is in the database. It runs in the transaction that enters the message into the
/// inbox, so the effect happens once. A function fits in [`Handlers::on`].
#[async_trait]
pub trait Handler<T: Send>: Send + Sync {
    /// Handles the message in the transaction, without committing or rolling back. The future may be dropped at its
    /// timeout or when the process stops; the handler is then called again.
    async fn handle(&self, transaction: &mut T, incoming: &Incoming) -> HandlerResult;
}

/// A handler that calls an external service (SMTP, HTTP, a tax agency) outside of any transaction, and commits the
/// result afterwards.
///
/// After a crash the service receives the call again with the same [`Incoming::idempotency_id`]. The result is
/// committed once.
#[async_trait]
pub trait CallHandler<T: Send>: Send + Sync {
    /// The response of the service.
    type Answer: Send + Sync + 'static;

    /// Calls the service.
    async fn call(&self, incoming: &Incoming) -> HandlerResult<Self::Answer>;

    /// Stores the response, in the transaction that enters the message into the inbox. If it fails, it is retried with
    /// the same response while the claim lasts, so that a locked table does not repeat the external call.
    async fn commit(&self, transaction: &mut T, incoming: &Incoming, answer: &Self::Answer) -> HandlerResult;
}

/// Settings of one handler that override the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HandlerOptions {
    /// Timeout of one attempt.
    pub timeout: Option<Duration>,
    /// Retry policy.
    pub retry: Option<HandlerRetryPolicy>,
    /// What happens to the key of a dead-lettered message, if order is kept.
    pub after_dead: Option<AfterDead>,
}

/// A handler and its options.
pub(crate) struct Registration<T> {
    pub(crate) kind: HandlerKind<T>,
    pub(crate) options: HandlerOptions,
}

/// The two kinds of handlers.
pub(crate) enum HandlerKind<T> {
    InTransaction(Box<dyn DynHandler<T>>),
    Call(Box<dyn DynCall<T>>),
}

impl<T> Registration<T> {
    /// Whether its only effect is in the transaction, so that several messages can share one.
    pub(crate) const fn is_in_transaction(&self) -> bool {
        matches!(self.kind, HandlerKind::InTransaction(_))
    }
}

/// A [`Handler`] or a function.
#[async_trait]
pub(crate) trait DynHandler<T: Send + 'static>: Send + Sync {
    async fn handle(&self, transaction: Tx<T>, incoming: &Incoming) -> Result<Verdict, HandlerError>;
}

struct ErasedHandler<H>(H);

#[async_trait]
impl<T: Send + 'static, H: Handler<T>> DynHandler<T> for ErasedHandler<H> {
    async fn handle(&self, mut transaction: Tx<T>, incoming: &Incoming) -> Result<Verdict, HandlerError> {
        Ok(self.0.handle(&mut transaction, incoming).await?)
    }
}

type FunctionFuture = Pin<Box<dyn Future<Output = Result<Verdict, HandlerError>> + Send>>;

struct ErasedFunction<F>(F);

#[async_trait]
impl<T, F> DynHandler<T> for ErasedFunction<F>
where
    T: Send + 'static,
    F: Fn(Tx<T>, &Incoming) -> FunctionFuture + Send + Sync,
{
    async fn handle(&self, transaction: Tx<T>, incoming: &Incoming) -> Result<Verdict, HandlerError> {
        (self.0)(transaction, incoming).await
    }
}

/// A [`CallHandler`] with an erased answer type.
#[async_trait]
pub(crate) trait DynCall<T: Send>: Send + Sync {
    async fn call(&self, incoming: &Incoming) -> Result<Box<dyn Any + Send + Sync>, HandlerError>;
    async fn commit(
        &self,
        transaction: &mut T,
        incoming: &Incoming,
        answer: &(dyn Any + Send + Sync),
    ) -> Result<Verdict, HandlerError>;
}

struct ErasedCall<H>(H);

#[async_trait]
impl<T: Send, H: CallHandler<T>> DynCall<T> for ErasedCall<H> {
    async fn call(&self, incoming: &Incoming) -> Result<Box<dyn Any + Send + Sync>, HandlerError> {
        Ok(Box::new(self.0.call(incoming).await?))
    }

    async fn commit(
        &self,
        transaction: &mut T,
        incoming: &Incoming,
        answer: &(dyn Any + Send + Sync),
    ) -> Result<Verdict, HandlerError> {
        let answer = answer.downcast_ref().expect("`call` returned this type");
        Ok(self.0.commit(transaction, incoming, answer).await?)
    }
}

/// Handlers by message type. `T` is the transaction type of the inbox.
pub struct Handlers<T> {
    exact: BTreeMap<String, Registration<T>>,
    /// By prefix of the type.
    prefixes: BTreeMap<String, Registration<T>>,
}

impl<T> Default for Handlers<T> {
    fn default() -> Self {
        Self { exact: BTreeMap::new(), prefixes: BTreeMap::new() }
    }
}

impl<T: Send + 'static> Handlers<T> {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a function for one type: `OrderPlaced`, a prefix: `order.*`, or all types: `*`. The most specific
    /// pattern wins. Panics if the pattern already has a handler, because that is a programming error.
    ///
    /// The payload is deserialized from JSON. A payload that does not deserialize is dead-lettered. State is cloned into
    /// the future:
    ///
    /// ```
    /// use relevo_inbox::{Handlers, HandlerResult, Incoming, Tx};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct OrderPlaced {
    ///     order: String,
    /// }
    ///
    /// async fn bill(mut tx: Tx<Vec<String>>, placed: Incoming<OrderPlaced>) -> HandlerResult<()> {
    ///     tx.push(format!("invoice for {}", placed.order));
    ///     Ok(())
    /// }
    ///
    /// let rates = std::sync::Arc::new(vec![10, 21]);
    /// let handlers = Handlers::new()
    ///     .on("OrderPlaced", bill)
    ///     .on("OrderCancelled", async |mut tx: Tx<Vec<String>>, cancelled: Incoming<OrderPlaced>| {
    ///         tx.push(format!("credit for {}", cancelled.order));
    ///         HandlerResult::Ok(())
    ///     })
    ///     .on("tax.*", move |mut tx: Tx<Vec<String>>, number: Incoming<usize>| {
    ///         let rates = rates.clone();
    ///         async move {
    ///             tx.push(rates.get(*number).ok_or("an unknown rate")?.to_string());
    ///             HandlerResult::Ok(())
    ///         }
    ///     });
    /// ```
    #[must_use]
    pub fn on<P, R, E, F, Fut>(self, pattern: &str, handler: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: Into<Verdict>,
        E: Into<HandlerError>,
        F: Fn(Tx<T>, Incoming<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        self.on_with(pattern, HandlerOptions::default(), handler)
    }

    /// Like [`on`](Self::on), with options.
    #[must_use]
    pub fn on_with<P, R, E, F, Fut>(self, pattern: &str, options: HandlerOptions, handler: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: Into<Verdict>,
        E: Into<HandlerError>,
        F: Fn(Tx<T>, Incoming<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        self.register_function(pattern, options, move |transaction: Tx<T>, incoming: &Incoming| {
            match incoming.clone().decode() {
                Ok(incoming) => erase(handler(transaction, incoming)),
                Err(error) => Box::pin(ready(Err(error))),
            }
        })
    }

    /// Like [`on`](Self::on), for a function that gets the payload as received.
    #[must_use]
    pub fn on_raw<R, E, F, Fut>(self, pattern: &str, handler: F) -> Self
    where
        R: Into<Verdict>,
        E: Into<HandlerError>,
        F: Fn(Tx<T>, Incoming<Bytes>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        self.on_raw_with(pattern, HandlerOptions::default(), handler)
    }

    /// Like [`on_raw`](Self::on_raw), with options.
    #[must_use]
    pub fn on_raw_with<R, E, F, Fut>(self, pattern: &str, options: HandlerOptions, handler: F) -> Self
    where
        R: Into<Verdict>,
        E: Into<HandlerError>,
        F: Fn(Tx<T>, Incoming<Bytes>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        self.register_function(pattern, options, move |transaction: Tx<T>, incoming: &Incoming| {
            erase(handler(transaction, incoming.clone()))
        })
    }

    /// Like [`on`](Self::on), for a handler with state. It deserializes the payload itself, with [`Incoming::json`].
    #[must_use]
    pub fn handler(self, pattern: &str, handler: impl Handler<T> + 'static) -> Self {
        self.handler_with(pattern, HandlerOptions::default(), handler)
    }

    /// Like [`handler`](Self::handler), with options.
    #[must_use]
    pub fn handler_with(self, pattern: &str, options: HandlerOptions, handler: impl Handler<T> + 'static) -> Self {
        self.register(
            pattern,
            Registration { kind: HandlerKind::InTransaction(Box::new(ErasedHandler(handler))), options },
        )
    }

    /// Like [`handler`](Self::handler), for a handler that calls an external service.
    #[must_use]
    pub fn call_handler(self, pattern: &str, handler: impl CallHandler<T> + 'static) -> Self {
        self.call_handler_with(pattern, HandlerOptions::default(), handler)
    }

    /// Like [`call_handler`](Self::call_handler), with options.
    #[must_use]
    pub fn call_handler_with(
        self,
        pattern: &str,
        options: HandlerOptions,
        handler: impl CallHandler<T> + 'static,
    ) -> Self {
        self.register(pattern, Registration { kind: HandlerKind::Call(Box::new(ErasedCall(handler))), options })
    }

    fn register_function(
        self,
        pattern: &str,
        options: HandlerOptions,
        function: impl Fn(Tx<T>, &Incoming) -> FunctionFuture + Send + Sync + 'static,
    ) -> Self {
        let kind = HandlerKind::InTransaction(Box::new(ErasedFunction(function)));
        self.register(pattern, Registration { kind, options })
    }

    fn register(mut self, pattern: &str, registration: Registration<T>) -> Self {
        let (map, name) = match pattern.strip_suffix('*') {
            Some(prefix) => (&mut self.prefixes, prefix),
            None => (&mut self.exact, pattern),
        };
        let previous = map.insert(name.to_owned(), registration);
        assert!(previous.is_none(), "two handlers for `{pattern}`");
        self
    }

    /// The handler for a type.
    pub(crate) fn find(&self, kind: &str) -> Option<&Registration<T>> {
        self.exact.get(kind).or_else(|| {
            let matching = self.prefixes.iter().filter(|(prefix, _)| kind.starts_with(prefix.as_str()));
            matching.max_by_key(|(prefix, _)| prefix.len()).map(|(_, registration)| registration)
        })
    }

    /// The longest timeout of all handlers. A handler without its own timeout has this default.
    pub(crate) fn timeout_max(&self, default: Duration) -> Duration {
        let all = self.exact.values().chain(self.prefixes.values());
        all.filter_map(|registration| registration.options.timeout).fold(default, Duration::max)
    }
}

fn erase<R, E>(future: impl Future<Output = Result<R, E>> + Send + 'static) -> FunctionFuture
where
    R: Into<Verdict>,
    E: Into<HandlerError>,
{
    Box::pin(async move { future.await.map(Into::into).map_err(Into::into) })
}

#[cfg(test)]
mod tests {
    use relevo_core::inbox::retries::classes;

    use super::*;
    use crate::incoming::tests::incoming;

    #[derive(serde::Deserialize)]
    struct Order {
        id: u32,
    }

    async fn skip(_tx: Tx<()>, _incoming: Incoming) -> HandlerResult {
        Ok(Verdict::Skip)
    }

    async fn add(mut ledger: Tx<Vec<u32>>, order: Incoming<Order>) -> HandlerResult<()> {
        ledger.push(order.id);
        Ok(())
    }

    struct Double;

    #[async_trait]
    impl CallHandler<Vec<u32>> for Double {
        type Answer = u32;

        async fn call(&self, incoming: &Incoming) -> HandlerResult<u32> {
            let order: Order = incoming.json()?;
            Ok(order.id * 2)
        }

        async fn commit(&self, ledger: &mut Vec<u32>, _incoming: &Incoming, answer: &u32) -> HandlerResult {
            ledger.push(*answer);
            Ok(Verdict::Done)
        }
    }

    fn with_timeout(timeout_s: u64) -> HandlerOptions {
        HandlerOptions { timeout: Some(Duration::from_secs(timeout_s)), ..HandlerOptions::default() }
    }

    #[test]
    fn the_most_specific_pattern_wins() {
        let handlers = Handlers::new()
            .on_raw_with("*", with_timeout(1), skip)
            .on_raw_with("order.*", with_timeout(2), skip)
            .on_raw_with("order.placed.*", with_timeout(3), skip)
            .on_raw_with("order.placed", with_timeout(4), skip);
        let found = |kind: &str| handlers.find(kind).and_then(|found| found.options.timeout).map(|time| time.as_secs());
        assert_eq!(found("order.placed"), Some(4));
        assert_eq!(found("order.placed.late"), Some(3));
        assert_eq!(found("order.shipped"), Some(2));
        assert_eq!(found("invoice.made"), Some(1));
    }

    #[test]
    fn a_type_without_a_matching_pattern_has_no_handler() {
        let handlers = Handlers::new().on_raw("order.*", skip);
        assert!(handlers.find("invoice.made").is_none());
    }

    #[test]
    #[should_panic(expected = "two handlers for `order.*`")]
    fn a_second_handler_for_a_pattern_is_rejected() {
        drop(Handlers::new().on_raw("order.*", skip).on_raw("order.*", skip));
    }

    #[tokio::test]
    async fn a_call_result_is_passed_to_commit() {
        let handlers = Handlers::new().call_handler("OrderPlaced", Double);
        let registration = handlers.find("OrderPlaced").expect("it is registered");
        let HandlerKind::Call(handler) = &registration.kind else { panic!("it is a call handler") };
        let (mut ledger, incoming) = (Vec::new(), incoming("OrderPlaced", r#"{"id": 21}"#, &[]));
        let answer = handler.call(&incoming).await.expect("the call succeeds");
        assert_eq!(handler.commit(&mut ledger, &incoming, &*answer).await.ok(), Some(Verdict::Done));
        assert_eq!(ledger, [42]);
    }

    /// Calls the function for `OrderPlaced` and returns what is left of its transaction.
    async fn handle(payload: &str) -> (Result<Verdict, HandlerError>, Option<Vec<u32>>) {
        let handlers = Handlers::new().on("OrderPlaced", add);
        let registration = handlers.find("OrderPlaced").expect("it is registered");
        let HandlerKind::InTransaction(handler) = &registration.kind else { panic!("it calls no service") };
        let (tx, lent) = Tx::lend(Vec::new());
        let result = handler.handle(tx, &incoming("OrderPlaced", payload, &[])).await;
        (result, lent.take_back())
    }

    #[tokio::test]
    async fn a_function_gets_its_payload_and_returns_the_transaction() {
        let (result, ledger) = handle(r#"{"id": 21}"#).await;
        assert_eq!((result.ok(), ledger), (Some(Verdict::Done), Some(vec![21])));
    }

    #[tokio::test]
    async fn a_payload_of_another_shape_is_undecodable() {
        let (result, ledger) = handle(r#"{"id": "x"}"#).await;
        assert_eq!(result.unwrap_err().class, classes::UNDECODABLE);
        assert_eq!(ledger, Some(Vec::new()));
    }
}
