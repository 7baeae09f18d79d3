//! The view of a replica: its leader, whether this replica may vote in it, and the proofs of how
//! views ended.

use super::{BlockId, Certificate, coin::Coin};
use alloc::collections::BTreeMap;
use quintet_replica::{Epoch, ReplicaId};

/// See the module.
#[derive(Hash)]
pub(super) struct ViewState {
    number: u64,
    leader_first: ReplicaId,
    members: u64,
    coin: Coin,
    /// It sent a timeout in this view, or is about to: with this block, and it neither votes nor
    /// proposes in the view's synchronous mode any more.
    stopped: Option<BlockId>,
    /// It came back without its memory and takes no part before the next view.
    out: bool,
    /// Its leader leaves it for the next one.
    leaving: bool,
    /// The newest certificate that can be handed out.
    certificate: Option<Certificate>,
    /// A view's end that has been learnt; the block that it elected may not be here yet.
    exit: Option<Certificate>,
    /// Blocks voted for in the mode before this one; only an injected bug looks at them.
    fall_old: BTreeMap<ReplicaId, BlockId>,
}

impl ViewState {
    pub fn new(epoch: &Epoch, coin: Coin) -> Self {
        Self {
            number: 0,
            leader_first: epoch.leader_first,
            members: epoch.members as u64,
            coin,
            stopped: None,
            out: false,
            leaving: false,
            certificate: None,
            exit: None,
            fall_old: BTreeMap::new(),
        }
    }

    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The leader of a view's synchronous mode.
    pub fn leader_of(&self, view: u64) -> ReplicaId {
        let turn = u64::from(self.leader_first.0) + view.saturating_sub(1) % self.members;
        ReplicaId((turn % self.members) as u16)
    }

    /// The leader of this view's synchronous mode.
    pub fn leader(&self) -> ReplicaId {
        self.leader_of(self.number)
    }

    /// The member that the coin elects in a view's asynchronous mode.
    pub fn elected(&self, view: u64) -> ReplicaId {
        self.coin.elected(view)
    }

    /// Whether a first block of this view may extend this one: it is of an earlier view, or a
    /// synchronous one.
    pub const fn is_above(&self, id: BlockId) -> bool {
        id.view < self.number || (id.view == self.number && id.level == 0)
    }

    /// The block of this view's timeout.
    pub const fn stopped(&self) -> Option<BlockId> {
        self.stopped
    }

    pub const fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// No synchronous vote or proposal in this view any more: its timeout carries this block.
    pub const fn stop(&mut self, high: BlockId) {
        self.stopped = Some(high);
    }

    /// The same, unless it has a timeout already.
    pub fn ensure_stopped(&mut self, high: BlockId) {
        self.stopped.get_or_insert(high);
    }

    pub const fn is_out(&self) -> bool {
        self.out
    }

    pub const fn is_leaving(&self) -> bool {
        self.leaving
    }

    pub const fn leave(&mut self) {
        self.leaving = true;
    }

    /// The journal has this.
    pub fn restore(&mut self, view: u64, certificate: Option<Certificate>) {
        self.number = view;
        self.certificate = certificate;
    }

    /// It begins without its state.
    pub const fn unstop(&mut self) {
        self.stopped = None;
    }

    /// It knows all that was decided, and is out of every view up to the highest of these.
    pub fn stand_out(&mut self, views: impl Iterator<Item = u64>) {
        self.number = views.fold(self.number, u64::max);
        self.out = true;
    }

    pub fn begin(&mut self, view: u64) {
        self.number = view;
        // Another ended a view after this one: the proof of this one's end is still worth telling.
        if let Some(exit) = self.exit.take_if(|exit| exit.view < view) {
            let known = self.certificate.as_ref().map_or(0, |known| known.view);
            if exit.view > known {
                self.certificate = Some(exit);
            }
        }
        self.stopped = None;
        self.leaving = false;
    }

    /// Takes part again. True when it did not before.
    pub const fn rejoin(&mut self) -> bool {
        core::mem::replace(&mut self.out, false)
    }

    pub const fn certificate(&self) -> Option<&Certificate> {
        self.certificate.as_ref()
    }

    /// For an injected bug.
    pub fn drop_certificate(&mut self) {
        self.certificate = None;
    }

    /// Only those say "new view" who can prove that the view before has ended: the replica that
    /// left it must be able to help those who did not (R2).
    pub fn has_proof(&self) -> bool {
        let proof = self.certificate.as_ref();
        self.number == 1 || proof.is_some_and(|proof| proof.view + 1 == self.number)
    }

    /// A view's end is proven.
    pub fn on_certificate(&mut self, certificate: Certificate, quorum: usize) {
        let known = self.exit.as_ref().map_or(0, |exit| exit.view);
        let mut completed = certificate.completed.iter();
        let members = completed.all(|id| u64::from(id.owner.0) < self.members);
        let enough = certificate.completed.len() >= quorum;
        if enough && members && certificate.view >= self.number && certificate.view > known {
            self.exit = Some(certificate);
        }
    }

    pub const fn has_exit(&self) -> bool {
        self.exit.is_some()
    }

    /// The view whose end has been learnt, this one or a later one, and the block that the coin
    /// elects there.
    pub fn exit(&mut self) -> Option<(u64, Option<BlockId>)> {
        self.exit.take_if(|exit| exit.view < self.number);
        let exit = self.exit.as_ref()?;
        let coin = self.coin.elected(exit.view);
        let elected = exit.completed.iter().copied().find(|id| id.owner == coin);
        Some((exit.view, elected))
    }

    /// The end that has been learnt is the newest certificate.
    pub fn take_exit(&mut self) {
        self.certificate = self.exit.take();
    }

    pub const fn fall_old(&self) -> &BTreeMap<ReplicaId, BlockId> {
        &self.fall_old
    }

    pub fn keep_fall(&mut self, fall: BTreeMap<ReplicaId, BlockId>) {
        self.fall_old = fall;
    }
}
