//! The reports of members about the epoch that they are in.

use super::*;

/// A replica's part of the state of its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Holds {
    /// Nothing that can be used.
    Nothing = 0,
    /// All of it, not yet durably.
    Soon = 1,
    /// All of it: others may take it.
    State = 2,
    /// All of it, at one that is no member.
    Gives = 3,
    /// Nothing, and it has never had any of it.
    Awaits = 4,
}

impl Holds {
    pub(super) const fn is_nothing(self) -> bool {
        matches!(self, Self::Nothing | Self::Awaits)
    }

    pub(super) const fn may_be_taken(self) -> bool {
        matches!(self, Self::State | Self::Gives)
    }
}

/// A replica's report to its peers about the epoch that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct EpochWord {
    pub(super) number: EpochNumber,
    /// It has ended permanently.
    pub(super) ended: bool,
    pub(super) holds: Holds,
    /// Where it began.
    pub(super) base: Executed,
    /// Its descriptor, as [`Descriptor::told`] has it.
    pub(super) descriptor: Bytes,
    /// And where are you?
    pub(super) asks: bool,
}

impl Wire for EpochWord {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.number.0);
        writer.bool(self.ended);
        writer.u8(self.holds as u8);
        writer.u64(self.base.slot.0);
        writer.u64(self.base.position.0);
        writer.slice(&self.descriptor);
        writer.bool(self.asks);
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            number: EpochNumber(reader.u64("epoch")?),
            ended: reader.bool("ended")?,
            holds: match reader.u8("what is held")? {
                0 => Holds::Nothing,
                1 => Holds::Soon,
                2 => Holds::State,
                3 => Holds::Gives,
                4 => Holds::Awaits,
                _ => return Err(DecodeError::Bad("what is held")),
            },
            base: Executed {
                slot: reader.slot("base")?,
                position: crate::Position(reader.number("base")?),
            },
            descriptor: reader.blob("descriptor")?,
            asks: reader.bool("asks")?,
        })
    }
}

impl EpochWord {
    pub(in super::super) fn into_descriptor(self) -> Bytes {
        self.descriptor
    }
}
