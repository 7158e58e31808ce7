//! How the parts of a topology are made, and asked for, over AMQP.

use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Channel, Connection, ExchangeKind};
use serde_json::Value;
use tokio::time::timeout;

use super::declare::Arguments;
use super::{DeclaredBinding, DeclaredExchange, DeclaredQueue, Target};
use crate::classify::Error;
use crate::config::Config;
use crate::link;

/// A connection for making topology; a refused request costs its channel and nothing else.
pub(crate) struct Maker {
    connection: Connection,
    config: Config,
}

impl Maker {
    /// Connects.
    pub(crate) async fn open(config: &Config) -> Result<Self, Error> {
        Self::named(config, "relevo topology").await
    }

    /// Connects under another name, which the broker's own tools show.
    pub(crate) async fn named(config: &Config, name: &str) -> Result<Self, Error> {
        let connection = link::connect(config, name).await?;
        Ok(Self { connection, config: config.clone() })
    }

    /// Whether the connection stands, as far as is known without asking.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.status().connected()
    }

    /// Ends the connection.
    pub(crate) async fn close(self) {
        // Nothing waits for the answer: a connection that is gone is closed as well.
        timeout(self.config.connect_deadline, self.connection.close(200, "bye".into())).await.ok();
    }

    /// Makes an exchange, or checks that it is as wanted if it is there.
    pub(crate) async fn exchange(&self, exchange: &DeclaredExchange) -> Result<(), Error> {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let (name, kind) = (short(&exchange.name)?, ExchangeKind::Custom(exchange.kind.to_owned()));
        let arguments = table(&exchange.arguments)?;
        self.asked(async |channel| channel.exchange_declare(name, kind, options, arguments).await).await
    }

    /// Makes a queue, or checks that it is as wanted if it is there.
    pub(crate) async fn queue(&self, queue: &DeclaredQueue) -> Result<(), Error> {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let (name, arguments) = (short(&queue.name)?, table(&queue.arguments)?);
        self.asked(async |channel| channel.queue_declare(name, options, arguments).await.map(drop)).await
    }

    /// Makes a binding; one that is there stays as it is.
    pub(crate) async fn binding(&self, binding: &DeclaredBinding) -> Result<(), Error> {
        let (from, key, arguments) = (short(&binding.exchange)?, short(&binding.key)?, table(&binding.arguments)?);
        match &binding.to {
            Target::Queue(name) => {
                let (to, options) = (short(name)?, QueueBindOptions::default());
                self.asked(async |channel| channel.queue_bind(to, from, key, options, arguments).await).await
            }
            Target::Exchange(name) => {
                let (to, options) = (short(name)?, ExchangeBindOptions::default());
                self.asked(async |channel| channel.exchange_bind(to, from, key, options, arguments).await).await
            }
        }
    }

    /// Whether there is an exchange of this name; it tells nothing else.
    pub(crate) async fn has_exchange(&self, name: &str) -> Result<bool, Error> {
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let name = short(name)?;
        let kind = ExchangeKind::Topic;
        let table = FieldTable::default();
        let declared = self.asked(async |channel| channel.exchange_declare(name, kind, options, table).await).await;
        Ok(found(declared)?.is_some())
    }

    /// Whether there is a queue of this name; it tells nothing else.
    pub(crate) async fn has_queue(&self, name: &str) -> Result<bool, Error> {
        Ok(self.ready(name).await?.is_some())
    }

    /// How many messages of a queue are ready for somebody who takes them; `None` if there is no queue of this name.
    pub(crate) async fn ready(&self, name: &str) -> Result<Option<u64>, Error> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let name = short(name)?;
        let table = FieldTable::default();
        let declared = self.asked(async |channel| channel.queue_declare(name, options, table).await).await;
        found(declared.map(|queue| queue.message_count().into()))
    }

    /// Asks on a channel of its own.
    async fn asked<T>(&self, request: impl AsyncFnOnce(&Channel) -> lapin::Result<T>) -> Result<T, Error> {
        let deadline = self.config.connect_deadline;
        let answer = async {
            let channel = self.connection.create_channel().await?;
            let told = request(&channel).await?;
            channel.close(200, "done".into()).await?;
            Ok::<T, lapin::Error>(told)
        };
        let answer = timeout(deadline, answer).await.map_err(|_| Error::Silent(deadline))?;
        answer.map_err(Error::of_channel)
    }
}

/// What is missing is no error.
fn found<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(told) => Ok(Some(told)),
        Err(Error::Missing(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn short(text: &str) -> Result<ShortString, Error> {
    ShortString::try_new(text).map_err(|_| Error::Config(format!("`{text}` is longer than 255 bytes")))
}

fn table(arguments: &Arguments) -> Result<FieldTable, Error> {
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
        table.insert(short(name)?, value);
    }
    Ok(table)
}
