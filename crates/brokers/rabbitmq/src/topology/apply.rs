//! Compares and creates the configured topology, over AMQP and the management API.

use async_trait::async_trait;
use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Channel, Connection, ExchangeKind};
use relevo_core::broker::admin::{BrokerAdmin, Difference, ExamineContext, TopologyItem, TopologyStatus};
use relevo_core::failure::Failure;
use relevo_core::finding::Finding;
use serde_json::Value;
use tokio::time::timeout;

use super::declarations::Arguments;
use super::{BindingDeclaration, BindingTarget, Declarations, ExchangeDeclaration, QueueDeclaration, TopologyPart};
use crate::classify::Error;
use crate::config::Config;
use crate::management::ManagementClient;
use crate::{connection, examine};

/// Creates the configured topology and checks the broker.
pub struct Admin {
    config: Config,
    declarations: Declarations,
    management: Option<ManagementClient>,
}

impl Admin {
    /// Validates the configuration and its topology. It sends no request to the broker.
    pub fn new(config: Config) -> Result<Self, Error> {
        config.validate()?;
        config.topology.validate()?;
        let management = ManagementClient::new(&config)?;
        if management.is_none() && !config.topology.policies.is_empty() {
            return Err(Error::Config("policies need a `management_url`".to_owned()));
        }
        let mut declarations = config.topology.declarations();
        declarations.imply_exchange(&config.exchange);
        Ok(Self { config, declarations, management })
    }

    async fn try_plan(&self) -> Result<Vec<TopologyItem>, Error> {
        if let Some(management) = &self.management {
            let server = management.server_state().await?;
            return Ok(self.declarations.parts().iter().map(|part| part.compare(&server)).collect());
        }
        let connection = TopologyConnection::open(&self.config).await?;
        let items = self.existing_items(&connection).await;
        connection.close().await;
        items
    }

    /// The plan without the management API: it shows only whether exchanges and queues exist.
    async fn existing_items(&self, connection: &TopologyConnection) -> Result<Vec<TopologyItem>, Error> {
        let mut items = Vec::new();
        for part in self.declarations.parts() {
            let exists = match part {
                TopologyPart::Exchange(exchange) => Some(connection.has_exchange(&exchange.name).await?),
                TopologyPart::Queue(queue) => Some(connection.has_queue(&queue.name).await?),
                // AMQP has no request for these.
                TopologyPart::Flag(_) | TopologyPart::Policy(_) | TopologyPart::Binding(_) => None,
            };
            let is_implied = matches!(part, TopologyPart::Exchange(exchange) if exchange.implied);
            let (status, reason) = match exists {
                Some(true) if is_implied => (TopologyStatus::Unchanged, ""),
                Some(false) => (TopologyStatus::Missing, ""),
                Some(true) => {
                    (TopologyStatus::Unknown, " (exists; its settings are not visible without the management API)")
                }
                None => (TopologyStatus::Unknown, " (not visible without the management API)"),
            };
            items.push(TopologyItem { name: format!("{}{reason}", part.name()), status });
        }
        Ok(items)
    }

    async fn try_apply(&self) -> Result<Vec<TopologyItem>, Error> {
        let before = self.try_plan().await?;
        if before.iter().any(|item| matches!(item.status, TopologyStatus::Different(_))) {
            return Ok(before);
        }
        let is_complete = !before.iter().any(|item| item.status == TopologyStatus::Missing);
        if is_complete && self.management.is_some() {
            return Ok(before);
        }
        let connection = TopologyConnection::open(&self.config).await?;
        let created = self.create_missing(&connection, &before).await;
        connection.close().await;
        let different = created?;
        // Read back the result instead of trusting the confirmation.
        let mut after = self.try_plan().await?;
        if !different.is_empty() {
            for (index, difference) in different {
                let status = TopologyStatus::Different(vec![difference]);
                after[index] = TopologyItem { name: self.declarations.parts()[index].name(), status };
            }
            return Ok(after);
        }
        for ((part, item), before) in self.declarations.parts().iter().zip(&mut after).zip(&before) {
            let status = match (&before.status, &item.status) {
                (TopologyStatus::Missing, TopologyStatus::Unchanged | TopologyStatus::Unknown) => {
                    TopologyStatus::Created
                }
                // The broker compared the repeated declaration and accepted it.
                (TopologyStatus::Unknown, TopologyStatus::Unknown) if part.is_declared() => TopologyStatus::Unchanged,
                _ => continue,
            };
            *item = TopologyItem { name: part.name(), status };
        }
        Ok(after)
    }

    /// Creates missing parts. Without the management API, existing parts are declared again first: if one differs, the
    /// broker refuses it and nothing is created. A binding that cannot be read is always declared; an existing one does
    /// not change. Returns the parts that the broker found different, by their index.
    async fn create_missing(
        &self,
        connection: &TopologyConnection,
        before: &[TopologyItem],
    ) -> Result<Vec<(usize, Difference)>, Error> {
        let parts = self.declarations.parts();
        let declare = async |part: &TopologyPart<'_>| {
            let declared = match part {
                TopologyPart::Exchange(exchange) => connection.declare_exchange(exchange).await,
                TopologyPart::Queue(queue) => connection.declare_queue(queue).await,
                TopologyPart::Flag(_) | TopologyPart::Policy(_) | TopologyPart::Binding(_) => Ok(()),
            };
            match declared {
                Ok(()) => Ok(None),
                Err(Error::Mismatch(reason)) => Ok(Some(refused_difference(&reason))),
                Err(error) => Err(error),
            }
        };
        let with_status = || parts.iter().zip(before).map(|(part, item)| (part, &item.status)).enumerate();
        let mut different = Vec::new();
        for (index, (part, _)) in with_status().filter(|(_, (_, status))| **status == TopologyStatus::Unknown) {
            different.extend(declare(part).await?.map(|difference| (index, difference)));
        }
        for (index, (part, status)) in with_status() {
            if !different.is_empty() {
                break;
            }
            match part {
                TopologyPart::Binding(binding)
                    if matches!(status, TopologyStatus::Missing | TopologyStatus::Unknown) =>
                {
                    connection.declare_binding(binding).await?;
                }
                _ if *status != TopologyStatus::Missing => {}
                // Another program may have created it since.
                TopologyPart::Exchange(_) | TopologyPart::Queue(_) => {
                    different.extend(declare(part).await?.map(|difference| (index, difference)));
                }
                TopologyPart::Policy(policy) => {
                    let management = self.management.as_ref().expect("policies are refused without a management URL");
                    management.create_policy(policy).await?;
                }
                TopologyPart::Flag(_) | TopologyPart::Binding(_) => {}
            }
        }
        Ok(different)
    }

    async fn try_examine(&self, context: &ExamineContext) -> Result<Vec<Finding>, Error> {
        match &self.management {
            Some(management) => {
                let server = management.server_state().await?;
                Ok(examine::with_management(&self.config, context, &server))
            }
            None => Ok(examine::without_management(&self.config)),
        }
    }
}

#[async_trait]
impl BrokerAdmin for Admin {
    async fn plan(&self) -> Result<Vec<TopologyItem>, Failure> {
        Ok(self.try_plan().await?)
    }

    async fn apply(&self) -> Result<Vec<TopologyItem>, Failure> {
        Ok(self.try_apply().await?)
    }

    async fn examine(&self, context: &ExamineContext) -> Result<Vec<Finding>, Failure> {
        Ok(self.try_examine(context).await?)
    }
}

/// A connection for topology requests. A refused request closes only its channel.
pub(crate) struct TopologyConnection {
    connection: Connection,
    config: Config,
}

impl TopologyConnection {
    /// Connects.
    pub(crate) async fn open(config: &Config) -> Result<Self, Error> {
        Self::open_named(config, "relevo topology").await
    }

    /// Connects with this connection name, which the broker's tools show.
    pub(crate) async fn open_named(config: &Config, name: &str) -> Result<Self, Error> {
        let connection = connection::connect(config, name).await?;
        Ok(Self { connection, config: config.clone() })
    }

    /// Whether the connection is open, without a request.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.status().connected()
    }

    /// Closes the connection.
    pub(crate) async fn close(self) {
        // Ignore the result: a lost connection is closed as well.
        timeout(self.config.connect_timeout, self.connection.close(200, "OK".into())).await.ok();
    }

    /// Creates an exchange, or verifies the settings of an existing one.
    pub(crate) async fn declare_exchange(&self, exchange: &ExchangeDeclaration) -> Result<(), Error> {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let (name, kind) = (short_string(&exchange.name)?, ExchangeKind::Custom(exchange.kind.to_owned()));
        let arguments = field_table(&exchange.arguments)?;
        self.with_channel(async |channel| channel.exchange_declare(name, kind, options, arguments).await).await
    }

    /// Creates a queue, or verifies the settings of an existing one.
    pub(crate) async fn declare_queue(&self, queue: &QueueDeclaration) -> Result<(), Error> {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let (name, arguments) = (short_string(&queue.name)?, field_table(&queue.arguments)?);
        self.with_channel(async |channel| channel.queue_declare(name, options, arguments).await.map(drop)).await
    }

    /// Creates a binding; an existing one does not change.
    pub(crate) async fn declare_binding(&self, binding: &BindingDeclaration) -> Result<(), Error> {
        let (from, key) = (short_string(&binding.exchange)?, short_string(&binding.key)?);
        let arguments = FieldTable::default();
        match &binding.to {
            BindingTarget::Queue(name) => {
                let (to, options) = (short_string(name)?, QueueBindOptions::default());
                self.with_channel(async |channel| channel.queue_bind(to, from, key, options, arguments).await).await
            }
            BindingTarget::Exchange(name) => {
                let (to, options) = (short_string(name)?, ExchangeBindOptions::default());
                self.with_channel(async |channel| channel.exchange_bind(to, from, key, options, arguments).await).await
            }
        }
    }

    /// Whether an exchange of this name exists, with any settings.
    pub(crate) async fn has_exchange(&self, name: &str) -> Result<bool, Error> {
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let name = short_string(name)?;
        let kind = ExchangeKind::Topic;
        let table = FieldTable::default();
        let declared =
            self.with_channel(async |channel| channel.exchange_declare(name, kind, options, table).await).await;
        Ok(none_if_missing(declared)?.is_some())
    }

    /// Whether a queue of this name exists, with any settings.
    pub(crate) async fn has_queue(&self, name: &str) -> Result<bool, Error> {
        Ok(self.message_count(name).await?.is_some())
    }

    /// The number of ready messages in a queue; `None` if the queue does not exist.
    pub(crate) async fn message_count(&self, name: &str) -> Result<Option<u64>, Error> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let name = short_string(name)?;
        let table = FieldTable::default();
        let declared = self.with_channel(async |channel| channel.queue_declare(name, options, table).await).await;
        none_if_missing(declared.map(|queue| queue.message_count().into()))
    }

    /// Sends a request on its own channel.
    async fn with_channel<T>(&self, request: impl AsyncFnOnce(&Channel) -> lapin::Result<T>) -> Result<T, Error> {
        let limit = self.config.connect_timeout;
        let response = async {
            let channel = self.connection.create_channel().await?;
            let result = request(&channel).await?;
            channel.close(200, "OK".into()).await?;
            Ok::<T, lapin::Error>(result)
        };
        let response = timeout(limit, response).await.map_err(|_| Error::NoResponse(limit))?;
        response.map_err(Error::from_channel_error)
    }
}

/// The setting because of which the broker refused a declaration, from its description, such as `inequivalent arg 'type'
/// for exchange 'shop' in vhost '/': received 'topic' but current is 'fanout'`. It names the first one only.
fn refused_difference(description: &str) -> Difference {
    // Other values than texts are like `the value '7' of type 'signedint'`.
    let value = |text: &str| text.split('\'').nth(1).unwrap_or(text).to_owned();
    let read = || {
        let (setting, rest) = description.split_once("inequivalent arg '")?.1.split_once('\'')?;
        let (expected, actual) = rest.split_once(": received ")?.1.split_once(" but current is ")?;
        Some(Difference { setting: setting.to_owned(), expected: value(expected), actual: value(actual) })
    };
    read().unwrap_or_else(|| Difference {
        setting: "declaration".to_owned(),
        expected: "accepted".to_owned(),
        actual: format!("refused ({description})"),
    })
}

/// Converts a missing object to `None`.
fn none_if_missing<T>(response: Result<T, Error>) -> Result<Option<T>, Error> {
    match response {
        Ok(value) => Ok(Some(value)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn short_string(text: &str) -> Result<ShortString, Error> {
    ShortString::try_new(text).map_err(|_| Error::Config(format!("`{text}` is longer than 255 bytes")))
}

pub(crate) fn field_table(arguments: &Arguments) -> Result<FieldTable, Error> {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Value::Bool(flag) => AMQPValue::Boolean(*flag),
            Value::String(text) => AMQPValue::LongString(LongString::from(text.as_str())),
            Value::Number(number) => AMQPValue::LongLongInt(
                number
                    .as_i64()
                    .ok_or_else(|| Error::Config(format!("`{name}`: {number} is too large for the broker")))?,
            ),
            other => return Err(Error::Config(format!("`{name}` cannot be {other}"))),
        };
        table.insert(short_string(name)?, value);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_declaration_names_its_first_difference() {
        let of = |description: &str| {
            let Difference { setting, expected, actual } = refused_difference(description);
            (setting, expected, actual)
        };
        for (values, expected, actual) in [
            ("received 'topic' but current is 'fanout'", "topic", "fanout"),
            ("received the value '1000' of type 'long' but current is none", "1000", "none"),
            ("received none but current is the value '7' of type 'signedint'", "none", "7"),
        ] {
            let text =
                format!("PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'a: b' in vhost '/': {values}");
            assert_eq!(of(&text), ("type".to_owned(), expected.to_owned(), actual.to_owned()));
        }
        let locked = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q'";
        assert_eq!(of(locked), ("declaration".to_owned(), "accepted".to_owned(), format!("refused ({locked})")));
    }
}
