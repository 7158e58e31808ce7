//! Handlers that users write, and their registration by message type.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::AfterDead;
use relevo_core::inbox::retries::Retries;
use serde::de::DeserializeOwned;

use crate::incoming::Incoming;
use crate::verdict::{Handled, Trouble};

/// A handler whose effect is in the database. It runs in the transaction that enters the message into the inbox, so the
/// effect happens once.
#[async_trait]
pub trait Inside<T: Send>: Send + Sync {
    /// Handles the message in the transaction, without committing or rolling back. The future may be dropped at its
    /// timeout or when the process stops; the handler is then called again.
    async fn handle(&self, transaction: &mut T, incoming: &Incoming) -> Handled;
}

/// A handler that calls an external service (SMTP, HTTP, a tax agency) outside of any transaction, and commits the
/// result afterwards.
///
/// After a crash the service receives the call again with the same [`Incoming::idempotency_id`]. The result is
/// committed once.
#[async_trait]
pub trait Call<T: Send>: Send + Sync {
    /// The response of the service.
    type Answer: Send + Sync + 'static;

    /// Calls the service.
    async fn call(&self, incoming: &Incoming) -> Result<Self::Answer, Trouble>;

    /// Stores the response, in the transaction that enters the message into the inbox. If it fails, it is retried with
    /// the same response while the claim lasts, so that a locked table does not repeat the external call.
    async fn commit(&self, transaction: &mut T, incoming: &Incoming, answer: &Self::Answer) -> Handled;
}

/// An [`Inside`] handler whose payload is deserialized from JSON: see [`typed`].
#[async_trait]
pub trait TypedInside<T: Send>: Send + Sync {
    /// Type of the payload. A payload that does not deserialize is dead-lettered.
    type Payload: DeserializeOwned + Send;

    /// Like [`Inside::handle`].
    async fn handle(&self, transaction: &mut T, payload: Self::Payload, incoming: &Incoming) -> Handled;
}

/// A [`Call`] handler whose payload is deserialized from JSON: see [`typed`].
#[async_trait]
pub trait TypedCall<T: Send>: Send + Sync {
    /// Type of the payload. A payload that does not deserialize is dead-lettered.
    type Payload: DeserializeOwned + Send;
    /// The response of the service.
    type Answer: Send + Sync + 'static;

    /// Like [`Call::call`].
    async fn call(&self, payload: Self::Payload, incoming: &Incoming) -> Result<Self::Answer, Trouble>;

    /// Like [`Call::commit`].
    async fn commit(&self, transaction: &mut T, incoming: &Incoming, answer: &Self::Answer) -> Handled;
}

/// Wraps a typed handler as an ordinary one.
pub fn typed<H>(handler: H) -> Typed<H> {
    Typed(handler)
}

/// Deserializes payloads for a typed handler.
#[derive(Clone, Copy, Debug)]
pub struct Typed<H>(H);

#[async_trait]
impl<T: Send, H: TypedInside<T>> Inside<T> for Typed<H> {
    async fn handle(&self, transaction: &mut T, incoming: &Incoming) -> Handled {
        let payload = incoming.json()?;
        self.0.handle(transaction, payload, incoming).await
    }
}

#[async_trait]
impl<T: Send, H: TypedCall<T>> Call<T> for Typed<H> {
    type Answer = H::Answer;

    async fn call(&self, incoming: &Incoming) -> Result<Self::Answer, Trouble> {
        let payload = incoming.json()?;
        self.0.call(payload, incoming).await
    }

    async fn commit(&self, transaction: &mut T, incoming: &Incoming, answer: &Self::Answer) -> Handled {
        self.0.commit(transaction, incoming, answer).await
    }
}

/// Settings of one handler that override the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Timeout of one attempt.
    pub deadline: Option<Duration>,
    /// Retry policy.
    pub retries: Option<Retries>,
    /// What happens to the key of a dead-lettered message, if order is kept.
    pub after_dead: Option<AfterDead>,
}

/// A handler and its options.
pub struct Registered<T> {
    pub(crate) form: Form<T>,
    pub(crate) options: Options,
}

/// The two kinds of handlers.
pub(crate) enum Form<T> {
    Inside(Box<dyn Inside<T>>),
    Call(Box<dyn AnyCall<T>>),
}

impl<T> Registered<T> {
    /// Whether its only effect is in the transaction, so that several messages can share one.
    pub(crate) const fn is_inside(&self) -> bool {
        matches!(self.form, Form::Inside(_))
    }
}

/// A [`Call`] with an erased answer type.
#[async_trait]
pub(crate) trait AnyCall<T: Send>: Send + Sync {
    async fn call(&self, incoming: &Incoming) -> Result<Box<dyn Any + Send + Sync>, Trouble>;
    async fn commit(&self, transaction: &mut T, incoming: &Incoming, answer: &(dyn Any + Send + Sync)) -> Handled;
}

struct Erased<H>(H);

#[async_trait]
impl<T: Send, H: Call<T>> AnyCall<T> for Erased<H> {
    async fn call(&self, incoming: &Incoming) -> Result<Box<dyn Any + Send + Sync>, Trouble> {
        Ok(Box::new(self.0.call(incoming).await?))
    }

    async fn commit(&self, transaction: &mut T, incoming: &Incoming, answer: &(dyn Any + Send + Sync)) -> Handled {
        let answer = answer.downcast_ref().expect("it is what `call` returned");
        self.0.commit(transaction, incoming, answer).await
    }
}

/// Handlers by message type. `T` is the transaction type of the inbox.
pub struct Handlers<T> {
    exact: BTreeMap<String, Arc<Registered<T>>>,
    /// By prefix of the type.
    prefixes: BTreeMap<String, Arc<Registered<T>>>,
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
    pub fn inside(self, pattern: &str, handler: impl Inside<T> + 'static) -> Self {
        self.inside_with(pattern, Options::default(), handler)
    }

    /// Like [`inside`](Self::inside), with options.
    #[must_use]
    pub fn inside_with(self, pattern: &str, options: Options, handler: impl Inside<T> + 'static) -> Self {
        self.with(pattern, Registered { form: Form::Inside(Box::new(handler)), options })
    }

    /// Like [`inside`](Self::inside), for a handler that calls an external service.
    #[must_use]
    pub fn call(self, pattern: &str, handler: impl Call<T> + 'static) -> Self {
        self.call_with(pattern, Options::default(), handler)
    }

    /// Like [`call`](Self::call), with options.
    #[must_use]
    pub fn call_with(self, pattern: &str, options: Options, handler: impl Call<T> + 'static) -> Self {
        self.with(pattern, Registered { form: Form::Call(Box::new(Erased(handler))), options })
    }

    fn with(mut self, pattern: &str, registered: Registered<T>) -> Self {
        let (map, name) = match pattern.strip_suffix('*') {
            Some(prefix) => (&mut self.prefixes, prefix),
            None => (&mut self.exact, pattern),
        };
        let before = map.insert(name.to_owned(), Arc::new(registered));
        assert!(before.is_none(), "two handlers for `{pattern}`");
        self
    }

    /// The handler for a type.
    pub fn find(&self, kind: &str) -> Option<&Arc<Registered<T>>> {
        self.exact.get(kind).or_else(|| {
            let fits = self.prefixes.iter().filter(|(prefix, _)| kind.starts_with(prefix.as_str()));
            fits.max_by_key(|(prefix, _)| prefix.len()).map(|(_, registered)| registered)
        })
    }

    /// The longest timeout of all handlers; those without their own have this default.
    pub(crate) fn deadline_max(&self, default: Duration) -> Duration {
        let all = self.exact.values().chain(self.prefixes.values());
        all.filter_map(|registered| registered.options.deadline).fold(default, Duration::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incoming::tests::incoming;
    use crate::verdict::Verdict;

    struct Says(Verdict);

    #[async_trait]
    impl Inside<()> for Says {
        async fn handle(&self, (): &mut (), _incoming: &Incoming) -> Handled {
            Ok(self.0)
        }
    }

    #[derive(serde::Deserialize)]
    struct Order {
        id: u32,
    }

    struct Doubles;

    #[async_trait]
    impl TypedCall<Vec<u32>> for Doubles {
        type Payload = Order;
        type Answer = u32;

        async fn call(&self, payload: Order, _incoming: &Incoming) -> Result<u32, Trouble> {
            Ok(payload.id * 2)
        }

        async fn commit(&self, ledger: &mut Vec<u32>, _incoming: &Incoming, answer: &u32) -> Handled {
            ledger.push(*answer);
            Ok(Verdict::Done)
        }
    }

    fn named(deadline_s: u64) -> Options {
        Options { deadline: Some(Duration::from_secs(deadline_s)), ..Options::default() }
    }

    #[test]
    fn the_most_exact_handler_has_a_message() {
        let handlers = Handlers::new()
            .inside_with("*", named(1), Says(Verdict::Done))
            .inside_with("order.*", named(2), Says(Verdict::Done))
            .inside_with("order.placed.*", named(3), Says(Verdict::Done))
            .inside_with("order.placed", named(4), Says(Verdict::Skip));
        let found =
            |kind: &str| handlers.find(kind).and_then(|found| found.options.deadline).map(|time| time.as_secs());
        assert_eq!(found("order.placed"), Some(4));
        assert_eq!(found("order.placed.late"), Some(3));
        assert_eq!(found("order.shipped"), Some(2));
        assert_eq!(found("invoice.made"), Some(1));
    }

    #[test]
    fn without_a_star_other_types_have_no_handler() {
        let handlers = Handlers::new().inside("order.*", Says(Verdict::Done));
        assert!(handlers.find("invoice.made").is_none());
    }

    #[test]
    #[should_panic(expected = "two handlers for `order.*`")]
    fn two_handlers_for_one_pattern_are_refused() {
        drop(Handlers::new().inside("order.*", Says(Verdict::Done)).inside("order.*", Says(Verdict::Skip)));
    }

    #[tokio::test]
    async fn an_answer_finds_its_way_back_to_the_handler() {
        let handlers = Handlers::new().call("OrderPlaced", typed(Doubles));
        let registered = handlers.find("OrderPlaced").expect("it was just put in");
        let Form::Call(handler) = &registered.form else { panic!("it calls") };
        let (mut ledger, incoming) = (Vec::new(), incoming("OrderPlaced", r#"{"id": 21}"#, &[]));
        let answer = handler.call(&incoming).await.expect("it answers");
        assert_eq!(handler.commit(&mut ledger, &incoming, &*answer).await.ok(), Some(Verdict::Done));
        assert_eq!(ledger, [42]);
    }

    #[tokio::test]
    async fn a_payload_of_another_shape_is_undecodable() {
        let incoming = incoming("OrderPlaced", r#"{"id": "x"}"#, &[]);
        let trouble = Call::call(&typed(Doubles), &incoming).await.unwrap_err();
        assert_eq!(trouble.class, Trouble::UNDECODABLE);
    }
}
