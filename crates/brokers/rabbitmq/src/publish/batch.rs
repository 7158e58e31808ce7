//! Assigns the messages of a batch to channels.

use std::collections::HashMap;

use relevo_core::Publication;
use relevo_core::slot::slot_of;

use super::encode::EncodedMessage;
use crate::classify::Error;
use crate::config::Config;

/// A batch, split by channel.
#[derive(Debug, Default)]
pub(crate) struct BatchPlan<'a> {
    /// Messages that can never be sent, by their index.
    pub(crate) refused: Vec<(usize, Error)>,
    /// Steps that are sent one after the other, each when the one before has all its outcomes. There is more than one
    /// only if messages of one key go to different exchanges: their channels keep no common order.
    pub(crate) steps: Vec<Vec<ChannelBatch<'a>>>,
}

/// The part of a step for one channel.
#[derive(Debug)]
pub(crate) struct ChannelBatch<'a> {
    pub(crate) exchange: &'a str,
    pub(crate) channel: usize,
    /// By their index in the batch.
    pub(crate) messages: Vec<(usize, EncodedMessage)>,
}

/// Splits a batch by exchange and channel. `frame_bytes` is the largest frame.
pub(crate) fn plan_batch<'a>(batch: &'a [Publication], config: &'a Config, frame_bytes: usize) -> BatchPlan<'a> {
    let mut plan = BatchPlan::default();
    let mut last_steps = None;
    for (index, publication) in batch.iter().enumerate() {
        let key = &*publication.message.key;
        match EncodedMessage::encode(publication, config, frame_bytes) {
            Err(error) => plan.refused.push((index, error)),
            Ok((exchange, message)) => {
                // Most batches use one exchange and need not track keys.
                if last_steps.is_none() && plan.steps.iter().flatten().any(|part| part.exchange != exchange) {
                    last_steps = Some(keys_so_far(batch, &plan));
                }
                let step = match &mut last_steps {
                    None => 0,
                    Some(keys) => {
                        let (last, step) = keys.entry(key).or_insert((exchange, 0));
                        *step += usize::from(*last != exchange);
                        *last = exchange;
                        *step
                    }
                };
                let channel = if config.channels_per_exchange == 1 {
                    0
                } else {
                    usize::from(slot_of(key)) % config.channels_per_exchange
                };
                plan.add(step, exchange, channel, (index, message));
            }
        }
    }
    plan
}

/// The keys so far, each with its exchange and its step.
fn keys_so_far<'a>(batch: &'a [Publication], plan: &BatchPlan<'a>) -> HashMap<&'a str, (&'a str, usize)> {
    let parts = plan.steps.iter().flatten();
    let keys = parts.flat_map(|part| part.messages.iter().map(|(index, _)| (*index, part.exchange)));
    keys.map(|(index, exchange)| (&*batch[index].message.key, (exchange, 0))).collect()
}

impl<'a> BatchPlan<'a> {
    fn add(&mut self, step: usize, exchange: &'a str, channel: usize, message: (usize, EncodedMessage)) {
        if self.steps.len() <= step {
            self.steps.resize_with(step + 1, Vec::new);
        }
        let parts = &mut self.steps[step];
        match parts.iter_mut().find(|part| part.exchange == exchange && part.channel == channel) {
            Some(part) => part.messages.push(message),
            None => parts.push(ChannelBatch { exchange, channel, messages: vec![message] }),
        }
    }
}

#[cfg(test)]
mod tests {
    use relevo_conformance::broker::harness::publication_to;

    use super::*;

    /// The steps of a batch, each with its exchanges and the indexes of their messages.
    fn steps(addresses: &[(&str, &str)]) -> Vec<Vec<(String, Vec<usize>)>> {
        let config = Config::new("amqp://localhost");
        let batch: Vec<Publication> =
            (0..).zip(addresses).map(|(number, (address, key))| publication_to(address, number, key)).collect();
        let plan = plan_batch(&batch, &config, 131_072);
        let indexes = |part: &ChannelBatch<'_>| part.messages.iter().map(|(index, _)| *index).collect();
        let names =
            |step: &Vec<ChannelBatch<'_>>| step.iter().map(|part| (part.exchange.to_owned(), indexes(part))).collect();
        plan.steps.iter().map(names).collect()
    }

    #[test]
    fn one_exchange_needs_one_step() {
        assert_eq!(steps(&[("x/a", "k"), ("x/b", "k")]), [[("x".to_owned(), vec![0, 1])]]);
    }

    #[test]
    fn exchanges_of_different_keys_need_one_step() {
        let expected = [[("x".to_owned(), vec![0, 2]), ("y".to_owned(), vec![1])]];
        assert_eq!(steps(&[("x/a", "k"), ("y/a", "l"), ("x/a", "m")]), expected);
    }

    #[test]
    fn a_key_that_changes_its_exchange_needs_another_step() {
        let actual = steps(&[("x/a", "k"), ("y/a", "k"), ("y/a", "k"), ("x/a", "k"), ("x/a", "l")]);
        let expected =
            [vec![("x".to_owned(), vec![0, 4])], vec![("y".to_owned(), vec![1, 2])], vec![("x".to_owned(), vec![3])]];
        assert_eq!(actual, expected);
    }
}
