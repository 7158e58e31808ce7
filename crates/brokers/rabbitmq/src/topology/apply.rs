//! Creates and queries the parts of a topology over AMQP.

use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Channel, Connection, ExchangeKind};
use serde_json::Value;
use tokio::time::timeout;

use super::declarations::Arguments;
use super::{BindingDeclaration, BindingTarget, ExchangeDeclaration, QueueDeclaration};
use crate::classify::Error;
use crate::config::Config;
use crate::connection;

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
        timeout(self.config.connect_timeout, self.connection.close(200, "bye".into())).await.ok();
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
        let (from, key, arguments) =
            (short_string(&binding.exchange)?, short_string(&binding.key)?, field_table(&binding.arguments)?);
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
        let deadline = self.config.connect_timeout;
        let answer = async {
            let channel = self.connection.create_channel().await?;
            let told = request(&channel).await?;
            channel.close(200, "done".into()).await?;
            Ok::<T, lapin::Error>(told)
        };
        let answer = timeout(deadline, answer).await.map_err(|_| Error::NoResponse(deadline))?;
        answer.map_err(Error::from_channel_error)
    }
}

/// Converts a missing object to `None`.
fn none_if_missing<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(told) => Ok(Some(told)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn short_string(text: &str) -> Result<ShortString, Error> {
    ShortString::try_new(text).map_err(|_| Error::Config(format!("`{text}` is longer than 255 bytes")))
}

fn field_table(arguments: &Arguments) -> Result<FieldTable, Error> {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Value::Bool(flag) => AMQPValue::Boolean(*flag),
            Value::String(text) => AMQPValue::LongString(LongString::from(text.as_str())),
            Value::Number(number) => AMQPValue::LongLongInt(
                number
                    .as_i64()
                    .ok_or_else(|| Error::Config(format!("`{name}`: {number} is more than the broker takes")))?,
            ),
            other => return Err(Error::Config(format!("`{name}` cannot be {other}"))),
        };
        table.insert(short_string(name)?, value);
    }
    Ok(table)
}
