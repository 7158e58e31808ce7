//! Handlers that users write, and their registration by message type.

use std::any::Any;
use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::AfterDead;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use serde::de::DeserializeOwned;

use crate::error::{HandlerError, HandlerResult};
use crate::incoming::Incoming;

/// A handler whose effect is in the database. It runs in the transaction that enters the message into the inbox, so the
/// effect happens once.
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
    async fn call(&self, incoming: &Incoming) -> Result<Self::Answer, HandlerError>;

    /// Stores the response, in the transaction that enters the message into the inbox. If it fails, it is retried with
    /// the same response while the claim lasts, so that a locked table does not repeat the external call.
    async fn commit(&self, transaction: &mut T, incoming: &Incoming, answer: &Self::Answer) -> HandlerResult;
}

/// A [`Handler`] whose payload is deserialized from JSON: see [`typed`].
#[async_trait]
pub trait TypedInside<T: Send>: Send + Sync {
    /// Type of the payload. A payload that does not deserialize is dead-lettered.
    type Payload: DeserializeOwned + Send;

    /// Like [`Handler::handle`].
    async fn handle(&self, transaction: &mut T, payload: Self::Payload, incoming: &Incoming) -> HandlerResult;
}

/// A [`CallHandler`] whose payload is deserialized from JSON: see [`typed`].
#[async_trait]
pub trait TypedCall<T: Send>: Send + Sync {
    /// Type of the payload. A payload that does not deserialize is dead-lettered.
    type Payload: DeserializeOwned + Send;
    /// The response of the service.
    type Answer: Send + Sync + 'static;

    /// Like [`CallHandler::call`].
    async fn call(&self, payload: Self::Payload, incoming: &Incoming) -> Result<Self::Answer, HandlerError>;

    /// Like [`CallHandler::commit`].
    async fn commit(&self, transaction: &mut T, incoming: &Incoming, answer: &Self::Answer) -> HandlerResult;
}

/// Wraps a typed handler as an ordinary one.
pub fn typed<H>(handler: H) -> Typed<H> {
    Typed(handler)
}

/// Deserializes payloads for a typed handler.
#[derive(Clone, Copy, Debug)]
pub struct Typed<H>(H);

#[async_trait]
impl<T: Send, H: TypedInside<T>> Handler<T> for Typed<H> {
    async fn handle(&self, transaction: &mut T, incoming: &Incoming) -> HandlerResult {
        let payload = incoming.json()?;
        self.0.handle(transaction, payload, incoming).await
    }
}

#[async_trait]
impl<T: Send, H: TypedCall<T>> CallHandler<T> for Typed<H> {
    type Answer = H::Answer;

    async fn call(&self, incoming: &Incoming) -> Result<Self::Answer, HandlerError> {
        let payload = incoming.json()?;
        self.0.call(payload, incoming).await
    }

    async fn commit(&self, transaction: &mut T, incoming: &Incoming, answer: &Self::Answer) -> HandlerResult {
        self.0.commit(transaction, incoming, answer).await
    }
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
    InTransaction(Box<dyn Handler<T>>),
    Call(Box<dyn DynCall<T>>),
}

impl<T> Registration<T> {
    /// Whether its only effect is in the transaction, so that several messages can share one.
    pub(crate) const fn is_in_transaction(&self) -> bool {
        matches!(self.kind, HandlerKind::InTransaction(_))
    }
}

/// A [`CallHandler`] with an erased answer type.
#[async_trait]
pub(crate) trait DynCall<T: Send>: Send + Sync {
    async fn call(&self, incoming: &Incoming) -> Result<Box<dyn Any + Send + Sync>, HandlerError>;
    async fn commit(&self, transaction: &mut T, incoming: &Incoming, answer: &(dyn Any + Send + Sync))
    -> HandlerResult;
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
    ) -> HandlerResult {
        let answer = answer.downcast_ref().expect("`call` returned this type");
        self.0.commit(transaction, incoming, answer).await
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

    /// Registers a handler for one type: `OrderPlaced`, a prefix: `order.*`, or all types: `*`. The most specific
    /// pattern wins. Panics if the pattern already has a handler, because that is a programming error.
    #[must_use]
    pub fn handler(self, pattern: &str, handler: impl Handler<T> + 'static) -> Self {
        self.handler_with(pattern, HandlerOptions::default(), handler)
    }

    /// Like [`handler`](Self::handler), with options.
    #[must_use]
    pub fn handler_with(self, pattern: &str, options: HandlerOptions, handler: impl Handler<T> + 'static) -> Self {
        self.register(pattern, Registration { kind: HandlerKind::InTransaction(Box::new(handler)), options })
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

#[cfg(test)]
mod tests {
    use relevo_core::inbox::retries::classes;

    use super::*;
    use crate::error::Verdict;
    use crate::incoming::tests::incoming;

    struct FixedVerdict(Verdict);

    #[async_trait]
    impl Handler<()> for FixedVerdict {
        async fn handle(&self, (): &mut (), _incoming: &Incoming) -> HandlerResult {
            Ok(self.0)
        }
    }

    #[derive(serde::Deserialize)]
    struct Order {
        id: u32,
    }

    struct Double;

    #[async_trait]
    impl TypedCall<Vec<u32>> for Double {
        type Payload = Order;
        type Answer = u32;

        async fn call(&self, payload: Order, _incoming: &Incoming) -> Result<u32, HandlerError> {
            Ok(payload.id * 2)
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
            .handler_with("*", with_timeout(1), FixedVerdict(Verdict::Done))
            .handler_with("order.*", with_timeout(2), FixedVerdict(Verdict::Done))
            .handler_with("order.placed.*", with_timeout(3), FixedVerdict(Verdict::Done))
            .handler_with("order.placed", with_timeout(4), FixedVerdict(Verdict::Skip));
        let found = |kind: &str| handlers.find(kind).and_then(|found| found.options.timeout).map(|time| time.as_secs());
        assert_eq!(found("order.placed"), Some(4));
        assert_eq!(found("order.placed.late"), Some(3));
        assert_eq!(found("order.shipped"), Some(2));
        assert_eq!(found("invoice.made"), Some(1));
    }

    #[test]
    fn a_type_without_a_matching_pattern_has_no_handler() {
        let handlers = Handlers::new().handler("order.*", FixedVerdict(Verdict::Done));
        assert!(handlers.find("invoice.made").is_none());
    }

    #[test]
    #[should_panic(expected = "two handlers for `order.*`")]
    fn a_second_handler_for_a_pattern_is_rejected() {
        drop(
            Handlers::new()
                .handler("order.*", FixedVerdict(Verdict::Done))
                .handler("order.*", FixedVerdict(Verdict::Skip)),
        );
    }

    #[tokio::test]
    async fn a_call_result_is_passed_to_commit() {
        let handlers = Handlers::new().call_handler("OrderPlaced", typed(Double));
        let registration = handlers.find("OrderPlaced").expect("it is registered");
        let HandlerKind::Call(handler) = &registration.kind else { panic!("it is a call handler") };
        let (mut ledger, incoming) = (Vec::new(), incoming("OrderPlaced", r#"{"id": 21}"#, &[]));
        let answer = handler.call(&incoming).await.expect("the call succeeds");
        assert_eq!(handler.commit(&mut ledger, &incoming, &*answer).await.ok(), Some(Verdict::Done));
        assert_eq!(ledger, [42]);
    }

    #[tokio::test]
    async fn a_payload_of_another_shape_is_undecodable() {
        let incoming = incoming("OrderPlaced", r#"{"id": "x"}"#, &[]);
        let error = CallHandler::call(&typed(Double), &incoming).await.unwrap_err();
        assert_eq!(error.class, classes::UNDECODABLE);
    }
}
