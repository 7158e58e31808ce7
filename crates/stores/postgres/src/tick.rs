//! Parses a PostgreSQL snapshot, to determine in Rust which late transactions a window contains.

use crate::classify::Error;

/// `xmin:xmax:xip,…`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    text: String,
    xmin: u64,
    xmax: u64,
    in_progress: Vec<u64>,
}

impl Snapshot {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let malformed = || Error::UnexpectedResponse("a snapshot is malformed");
        let mut parts = text.splitn(3, ':');
        let mut number = || parts.next().and_then(|part| part.parse().ok()).ok_or_else(malformed);
        let (xmin, xmax) = (number()?, number()?);
        let open = parts.next().ok_or_else(malformed)?;
        let open = open.split(',').filter(|part| !part.is_empty()).map(str::parse).collect::<Result<_, _>>();
        Ok(Self { text: text.to_owned(), xmin, xmax, in_progress: open.map_err(|_| malformed())? })
    }

    /// The same result as `pg_visible_in_snapshot`.
    pub(crate) fn sees(&self, xid: u64) -> bool {
        xid < self.xmin || (xid < self.xmax && !self.in_progress.contains(&xid))
    }

    /// The transactions below [`xmax`](Self::xmax) that were open in this snapshot and that `to` sees, in ascending order.
    pub(crate) fn ended_until(&self, to: &Self) -> Vec<u64> {
        let mut ended: Vec<u64> = self.in_progress.iter().copied().filter(|&xid| to.sees(xid)).collect();
        ended.sort_unstable();
        ended
    }

    /// The snapshot sees no transaction from this id on.
    pub(crate) const fn xmax(&self) -> u64 {
        self.xmax
    }

    /// The text form that SQL accepts.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// One row of the table `tick`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    pub(crate) id: i64,
    pub(crate) snapshot: Snapshot,
    pub(crate) max_seq: i64,
    /// Transactions that may hold numbers up to `high` and are not visible in the snapshot.
    pub(crate) late_xids: Vec<u64>,
}

impl Tick {
    pub(crate) fn parse(no: i64, snapshot: &str, high: i64, late: &str) -> Result<Self, Error> {
        let inner = late.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        let late = inner
            .ok_or(Error::UnexpectedResponse("an array is malformed"))?
            .split(',')
            .filter(|part| !part.is_empty())
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|_| Error::UnexpectedResponse("an array is malformed"))?;
        Ok(Self { id: no, snapshot: Snapshot::parse(snapshot)?, max_seq: high, late_xids: late })
    }

    /// Returns the late transactions that a window from this tick to `to` contains.
    pub(crate) fn late_xids_until(&self, to: &Self) -> Vec<u64> {
        self.late_xids.iter().copied().filter(|&xid| to.snapshot.sees(xid) && !self.snapshot.sees(xid)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_transactions_that_ended_before_it() {
        let snapshot = Snapshot::parse("10:20:12,15").expect("well formed");
        let seen: Vec<u64> = (8..22).filter(|&xid| snapshot.sees(xid)).collect();
        assert_eq!(seen, [8, 9, 10, 11, 13, 14, 16, 17, 18, 19]);
    }

    #[test]
    fn late_transactions_belong_to_the_window_that_sees_them_end() {
        let from = Tick::parse(1, "10:20:10,15", 5, "{10,15,20,21}").expect("well formed");
        let to = Tick::parse(2, "15:21:15", 9, "{15}").expect("well formed");
        assert_eq!(from.late_xids_until(&to), [10, 20]);
    }

    #[test]
    fn malformed_text_is_an_error() {
        for text in ["", "1", "1:2", "a:2:", "1:2:x"] {
            assert!(Snapshot::parse(text).is_err(), "{text}");
        }
        assert!(Tick::parse(1, "1:2:", 0, "1,2").is_err());
    }
}
