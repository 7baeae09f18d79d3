//! The end of an epoch, offered, fetched and fed.

use super::*;

/// A replica that has fetched stands where its donor does, whose epoch ended at a slot; and so does
/// one that starts from what was saved.
fn ends_where_its_donor_did(fetcher: &mut Place, donor: &mut Place, base: u64) {
    let seal = donor.node.sealed().cloned().expect("it has ended");
    assert_eq!(seal.base.slot, Slot(base));
    assert_eq!(fetcher.node.sealed(), Some(&seal));
    assert_eq!(fetcher.node.executed(), donor.node.executed());
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
    assert_eq!(fetcher.node.protocol_digest(), donor.node.protocol_digest());
    let mut again = Place::node(0, Durability::Memory, &Entry::of::<Puppet<false>>(), "");
    again
        .start(RecoveredBytes::default(), &fetcher.world, &mut Vec::new())
        .expect("starts");
    assert_eq!(again.sealed(), Some(&seal));
    assert_eq!(again.state_digest(), donor.node.state_digest());
}

#[test]
fn feed_across_the_end_of_an_epoch_ends_it_where_it_ended() {
    let (mut fetcher, mut donor) = fetched_again(8);
    donor.pull("end the epoch", 9);
    donor.pull("execute", 10);
    donor.pull("execute", 11);
    while !exchange(&mut fetcher, &mut donor) {
        fetcher.fire_fetch_timer();
    }
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.protocol_digest(), 11, "and it is told so");
    ends_where_its_donor_did(&mut fetcher, &mut donor, 9);
}

#[test]
fn state_from_behind_the_end_of_an_epoch_is_given_and_installed() {
    let (mut fetcher, mut donor) = (Place::new(0), donor(5));
    donor.pull("end the epoch", 6);
    donor.pull("execute", 7);
    donor.pull("execute", 8);
    fetch(&mut fetcher, &mut donor, 8);
    fetcher.save();
    assert_eq!(fetcher.node.protocol_digest(), 8, "and it is told so");
    ends_where_its_donor_did(&mut fetcher, &mut donor, 6);
    let status = fetcher.node.status(&fetcher.world);
    assert_eq!((status.executed.slot, status.progress), (Slot(6), Slot(8)));
}

#[test]
fn useless_end_of_epoch_is_rejected_when_offered() {
    let next = descriptor().successor().encode();
    let offer = |place: &mut Place, next: &[u8]| {
        (place.node).offer_seal(next, &place.world, &mut place.out)
    };
    let mut place = Place::ahead(0);
    let foreign = descriptor().encode();
    assert_eq!(offer(&mut place, &foreign), Err(SealError::NoSuccessor));
    let torn = &next[..next.len() - 1];
    assert_eq!(offer(&mut place, torn), Err(SealError::Unreadable));
    let mut long = next.to_vec();
    long.resize(2 << 20, 0);
    assert_eq!(
        offer(&mut place, &long),
        Err(SealError::TooLong(long.len()))
    );
    place.pull("end the epoch", 1);
    assert_eq!(offer(&mut place, &next), Err(SealError::Pending));
    let mut place = Place::new(0);
    place.pull("end the epoch", 1);
    assert_eq!(offer(&mut place, &next), Err(SealError::Ended));
}
