//! Reads PostgreSQL's binary COPY format, sharing the buffer instead of copying fields out of it.

use bytes::{Buf, Bytes};
use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::message::Headers;
use uuid::Uuid;

use crate::classify::Error;

const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";
/// Microseconds between 1970 and PostgreSQL's epoch, 2000.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// The rows of one response.
pub(crate) struct CopyRows {
    rest: Bytes,
    fields: usize,
}

impl CopyRows {
    /// Checks the header. Every row must have `fields` fields.
    pub(crate) fn new(mut whole: Bytes, fields: usize) -> Result<Self, Error> {
        if whole.len() < SIGNATURE.len() + 8 || !whole.starts_with(SIGNATURE) {
            return Err(Error::UnexpectedResponse("not a binary copy"));
        }
        whole.advance(SIGNATURE.len() + 4);
        let extension = whole.get_u32() as usize;
        if whole.len() < extension {
            return Err(Error::UnexpectedResponse("a binary copy is cut off"));
        }
        whole.advance(extension);
        Ok(Self { rest: whole, fields })
    }

    /// Returns the next row, or `None` at the end.
    pub(crate) fn next_row(&mut self) -> Result<Option<CopyRow<'_>>, Error> {
        let count = self.take(2)?.get_i16();
        if count == -1 {
            return Ok(None);
        }
        if usize::try_from(count).ok() != Some(self.fields) {
            return Err(Error::UnexpectedResponse("a row has another number of fields"));
        }
        Ok(Some(CopyRow(self)))
    }

    fn take(&mut self, bytes: usize) -> Result<Bytes, Error> {
        if self.rest.len() < bytes {
            return Err(Error::UnexpectedResponse("a binary copy is cut off"));
        }
        Ok(self.rest.split_to(bytes))
    }
}

/// One row. Read its fields in order, each once.
pub(crate) struct CopyRow<'a>(&'a mut CopyRows);

impl CopyRow<'_> {
    pub(crate) fn optional(&mut self) -> Result<Option<Bytes>, Error> {
        match self.0.take(4)?.get_i32() {
            -1 => Ok(None),
            length => {
                let length =
                    usize::try_from(length).map_err(|_| Error::UnexpectedResponse("a field has a negative length"))?;
                self.0.take(length).map(Some)
            }
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<Bytes, Error> {
        self.optional()?.ok_or(Error::UnexpectedResponse("a field is null"))
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.bytes()?.as_ref().try_into().map_err(|_| Error::UnexpectedResponse("a field has another length"))
    }

    pub(crate) fn int8(&mut self) -> Result<i64, Error> {
        self.fixed().map(i64::from_be_bytes)
    }

    pub(crate) fn optional_int8(&mut self) -> Result<Option<i64>, Error> {
        let field = self.optional()?;
        let field = field.map(|bytes| {
            bytes.as_ref().try_into().map_err(|_| Error::UnexpectedResponse("a field has another length"))
        });
        Ok(field.transpose()?.map(i64::from_be_bytes))
    }

    pub(crate) fn int4(&mut self) -> Result<i32, Error> {
        self.fixed().map(i32::from_be_bytes)
    }

    pub(crate) fn slot(&mut self) -> Result<u16, Error> {
        self.fixed().map(u16::from_be_bytes)
    }

    pub(crate) fn uuid(&mut self) -> Result<Uuid, Error> {
        self.fixed().map(Uuid::from_bytes)
    }

    pub(crate) fn boolean(&mut self) -> Result<bool, Error> {
        self.fixed().map(|[byte]| byte != 0)
    }

    /// Reads a number that cannot be negative, such as a count or a number of seconds.
    pub(crate) fn count(&mut self) -> Result<u64, Error> {
        u64::try_from(self.int8()?).map_err(|_| Error::UnexpectedResponse("a count is negative"))
    }

    pub(crate) fn timestamp(&mut self) -> Result<Timestamp, Error> {
        self.fixed().and_then(timestamp)
    }

    pub(crate) fn optional_timestamp(&mut self) -> Result<Option<Timestamp>, Error> {
        let field = self.optional()?;
        let field = field.map(|bytes| {
            bytes.as_ref().try_into().map_err(|_| Error::UnexpectedResponse("a field has another length"))
        });
        field.transpose()?.map(timestamp).transpose()
    }

    pub(crate) fn optional_string(&mut self) -> Result<Option<String>, Error> {
        Ok(self.optional_text()?.map(|text| text.to_string()))
    }

    pub(crate) fn optional_uuid(&mut self) -> Result<Option<Uuid>, Error> {
        self.optional()?
            .map(|bytes| Uuid::from_slice(&bytes).map_err(|_| Error::UnexpectedResponse("an id has another length")))
            .transpose()
    }

    pub(crate) fn string(&mut self) -> Result<String, Error> {
        Ok(self.text()?.to_string())
    }

    pub(crate) fn text(&mut self) -> Result<ByteString, Error> {
        text(self.bytes()?)
    }

    pub(crate) fn optional_text(&mut self) -> Result<Option<ByteString>, Error> {
        self.optional()?.map(text).transpose()
    }

    /// Reads headers from the text of a JSON object. `emit` rejects values that are not strings, but a manual INSERT
    /// may write them. Such a value becomes its JSON text, so that one row cannot block a shard.
    pub(crate) fn headers(&mut self) -> Result<Headers, Error> {
        let Some(json) = self.optional()? else { return Ok(Headers::new()) };
        if let Ok(headers) = serde_json::from_slice(&json) {
            return Ok(headers);
        }
        let value: serde_json::Value =
            serde_json::from_slice(&json).map_err(|_| Error::UnexpectedResponse("headers are not JSON"))?;
        let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Ok(value.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), text(value))).collect())
    }
}

fn timestamp(field: [u8; 8]) -> Result<Timestamp, Error> {
    let micros = i64::from_be_bytes(field)
        .checked_add(EPOCH_MICROS)
        .ok_or(Error::UnexpectedResponse("a time is out of range"))?;
    Timestamp::from_microsecond(micros).map_err(|_| Error::UnexpectedResponse("a time is out of range"))
}

fn text(bytes: Bytes) -> Result<ByteString, Error> {
    ByteString::try_from(bytes).map_err(|_| Error::UnexpectedResponse("text is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(rows: &[u8]) -> Bytes {
        let mut whole = SIGNATURE.to_vec();
        whole.extend([0; 8]);
        whole.extend(rows);
        whole.into()
    }

    #[test]
    fn fields_are_read_in_their_order() {
        let mut rows =
            CopyRows::new(copy(b"\0\x03\0\0\0\x08\0\0\0\0\0\0\0\x07\xff\xff\xff\xff\0\0\0\x02hi\xff\xff"), 3).unwrap();
        let mut row = rows.next_row().unwrap().unwrap();
        assert_eq!(row.int8().unwrap(), 7);
        assert_eq!(row.optional().unwrap(), None);
        assert_eq!(row.text().unwrap(), "hi");
        assert!(rows.next_row().unwrap().is_none());
    }

    #[test]
    fn truncated_input_is_an_error_and_never_a_panic() {
        let whole = copy(b"\0\x01\0\0\0\x02hi\xff\xff");
        for end in 0..whole.len() {
            let read = || -> Result<(), Error> {
                let mut rows = CopyRows::new(whole.slice(..end), 1)?;
                while let Some(mut row) = rows.next_row()? {
                    row.text()?;
                }
                Ok(())
            };
            assert!(read().is_err(), "cut at {end}");
        }
    }
}
