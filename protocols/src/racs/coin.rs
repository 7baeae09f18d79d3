//! The common coin: for each view the same replica everywhere. Only replicas that know the
//! cluster's secret can tell it before.

use quintet_replica::{Epoch, ReplicaId};
use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};

/// Draws one member per view by a pseudo-random function of the epoch's secret, without bias.
#[derive(Clone, Debug, Hash)]
pub(super) struct Coin {
    secret: [u8; 32],
    epoch: u64,
    members: u64,
}

/// Tells this use of the secret from others.
const DOMAIN: u64 = 0x7261_6373_2d63_6f69;

impl Coin {
    pub const fn new(epoch: &Epoch) -> Self {
        Self {
            secret: epoch.secret,
            epoch: epoch.number.0,
            members: epoch.members as u64,
        }
    }

    /// A coin that others do not share: an injected bug.
    pub const fn corrupt(&mut self, id: ReplicaId) {
        self.secret[0] ^= id.0 as u8 + 1;
    }

    /// The elected replica in the asynchronous mode of this view.
    pub fn elected(&self, view: u64) -> ReplicaId {
        let mut random = ChaCha20Rng::from_seed(self.secret);
        random.set_stream(DOMAIN ^ self.epoch);
        // One block of key stream per view.
        random.set_word_pos(u128::from(view) * 16);
        let zone = u64::MAX - u64::MAX % self.members;
        loop {
            let draw = random.next_u64();
            if draw < zone {
                return ReplicaId((draw % self.members) as u16);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};
    use quintet_replica::{ClusterId, EpochNumber};

    fn coin(number: u64, secret: u8) -> Coin {
        Coin::new(&Epoch {
            cluster: ClusterId(1),
            number: EpochNumber(number),
            members: 5,
            options: Vec::new(),
            secret: [secret; 32],
            leader_first: ReplicaId(0),
        })
    }

    #[test]
    fn all_sides_fall_about_as_often_and_epochs_and_secrets_differ() {
        let mut count = vec![0; 5];
        let (mut epochs, mut secrets) = (0, 0);
        for view in 0..5000 {
            let side = coin(1, 7).elected(view);
            count[side.index()] += 1;
            epochs += u32::from(coin(2, 7).elected(view) == side);
            secrets += u32::from(coin(1, 8).elected(view) == side);
        }
        assert!(
            count.iter().all(|count| (850..1150).contains(count)),
            "{count:?}"
        );
        assert!((800..1200).contains(&epochs) && (800..1200).contains(&secrets));
    }
}
