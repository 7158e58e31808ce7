//! Rules that several stores share. They have no I/O, so that a store without functions in its database can call them.

use crate::outbox::Position;
use crate::outbox::leases::Lease;

/// The shards that a page is read for, among those requested: the ones at the oldest position, so that shards that lag
/// behind catch up and are read together with the others again. Shards inside a window come before those that need a
/// new one.
pub fn oldest_group(shards: &[(Lease, Position)]) -> Option<(&Position, Vec<Lease>)> {
    let age = |position: &Position| {
        (position.is_exhausted(), position.from_tick(), position.to_tick(), position.settled_seq())
    };
    let oldest = shards.iter().map(|(_, position)| position).min_by_key(|position| age(position))?;
    Some((oldest, shards.iter().filter(|(_, position)| position == oldest).map(|(lease, _)| *lease).collect()))
}

/// The position at the start of a window that ends at this tick. Without a newer tick, nothing can be read.
pub fn open_window(after: &Position, to_tick: i64) -> Position {
    Position::in_window(after.from_tick(), to_tick.max(after.from_tick()), 0)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn lease(shard: u16) -> Lease {
        Lease { shard, shard_count: 8, epoch: 1, owner: Uuid::nil() }
    }

    #[test]
    fn the_shards_at_the_oldest_position_are_read_first() {
        let positions =
            [Position::at(5), Position::at(3), Position::in_window(5, 9, 40), Position::at(3), Position::at(9)];
        let mut shards: Vec<_> = (0..).map(lease).zip(positions).collect();
        let read = |shards: &[(Lease, Position)]| oldest_group(shards).map(|(at, leases)| (at.clone(), leases));
        assert_eq!(read(&shards), Some((Position::in_window(5, 9, 40), vec![lease(2)])), "an open window is finished");
        shards[2].1 = Position::at(9);
        assert_eq!(read(&shards), Some((Position::at(3), vec![lease(1), lease(3)])));
        assert_eq!(read(&[]), None);
    }
}
