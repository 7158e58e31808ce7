//! Assigns the messages of a batch to channels.

use std::collections::HashMap;

use relevo_core::Publication;
use relevo_core::slot::slot_of;

use super::parcel::Parcel;
use crate::classify::Error;
use crate::config::Config;

/// A batch, split by channel.
#[derive(Debug, Default)]
pub(crate) struct Sorted<'a> {
    /// Messages that can never be sent, by their index.
    pub(crate) refused: Vec<(usize, Error)>,
    /// Steps that are sent one after the other, each when the one before has all its outcomes. There is more than one
    /// only if messages of one key go to different exchanges: their channels keep no common order.
    pub(crate) waves: Vec<Vec<Share<'a>>>,
}

/// The part of a step for one channel.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    pub(crate) exchange: &'a str,
    pub(crate) channel: usize,
    /// By their index in the batch.
    pub(crate) parcels: Vec<(usize, Parcel)>,
}

/// Splits a batch by exchange and channel. `frame_bytes` is the largest frame.
pub(crate) fn sort<'a>(batch: &'a [Publication], config: &'a Config, frame_bytes: usize) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    let mut several = None;
    for (index, publication) in batch.iter().enumerate() {
        let key = &*publication.message.key;
        match Parcel::of(publication, config, frame_bytes) {
            Err(why) => sorted.refused.push((index, why)),
            Ok((exchange, parcel)) => {
                // Most batches use one exchange and need not track keys.
                if several.is_none() && sorted.waves.iter().flatten().any(|share| share.exchange != exchange) {
                    several = Some(earlier(batch, &sorted));
                }
                let wave = match &mut several {
                    None => 0,
                    Some(keys) => {
                        let (last, wave) = keys.entry(key).or_insert((exchange, 0));
                        *wave += usize::from(*last != exchange);
                        *last = exchange;
                        *wave
                    }
                };
                let channel = if config.channels == 1 { 0 } else { usize::from(slot_of(key)) % config.channels };
                sorted.put(wave, exchange, channel, (index, parcel));
            }
        }
    }
    sorted
}

/// The keys so far, each with its exchange and its step.
fn earlier<'a>(batch: &'a [Publication], sorted: &Sorted<'a>) -> HashMap<&'a str, (&'a str, usize)> {
    let shares = sorted.waves.iter().flatten();
    let keys = shares.flat_map(|share| share.parcels.iter().map(|(index, _)| (*index, share.exchange)));
    keys.map(|(index, exchange)| (&*batch[index].message.key, (exchange, 0))).collect()
}

impl<'a> Sorted<'a> {
    fn put(&mut self, wave: usize, exchange: &'a str, channel: usize, parcel: (usize, Parcel)) {
        if self.waves.len() <= wave {
            self.waves.resize_with(wave + 1, Vec::new);
        }
        let shares = &mut self.waves[wave];
        match shares.iter_mut().find(|share| share.exchange == exchange && share.channel == channel) {
            Some(share) => share.parcels.push(parcel),
            None => shares.push(Share { exchange, channel, parcels: vec![parcel] }),
        }
    }
}

#[cfg(test)]
mod tests {
    use relevo_conformance::broker::harness::to;

    use super::*;

    /// The steps of a batch, each with its exchanges and the indexes of their messages.
    fn waves(addresses: &[(&str, &str)]) -> Vec<Vec<(String, Vec<usize>)>> {
        let config = Config::new("amqp://localhost");
        let batch: Vec<Publication> = (0..).zip(addresses).map(|(number, (to_, key))| to(to_, number, key)).collect();
        let sorted = sort(&batch, &config, 131_072);
        let indexes = |share: &Share<'_>| share.parcels.iter().map(|(index, _)| *index).collect();
        let names =
            |wave: &Vec<Share<'_>>| wave.iter().map(|share| (share.exchange.to_owned(), indexes(share))).collect();
        sorted.waves.iter().map(names).collect()
    }

    #[test]
    fn one_exchange_is_one_wave() {
        assert_eq!(waves(&[("x/a", "k"), ("x/b", "k")]), [[("x".to_owned(), vec![0, 1])]]);
    }

    #[test]
    fn exchanges_of_different_keys_are_one_wave() {
        let expected = [[("x".to_owned(), vec![0, 2]), ("y".to_owned(), vec![1])]];
        assert_eq!(waves(&[("x/a", "k"), ("y/a", "l"), ("x/a", "m")]), expected);
    }

    #[test]
    fn a_key_that_changes_its_exchange_waits() {
        let found = waves(&[("x/a", "k"), ("y/a", "k"), ("y/a", "k"), ("x/a", "k"), ("x/a", "l")]);
        let expected =
            [vec![("x".to_owned(), vec![0, 4])], vec![("y".to_owned(), vec![1, 2])], vec![("x".to_owned(), vec![3])]];
        assert_eq!(found, expected);
    }
}
