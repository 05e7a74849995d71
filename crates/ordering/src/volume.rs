//! What entries do: the interface between the ordering protocol and the volume's content.
//!
//! The machines in [`engine`](crate::engine) and [`orderer`](crate::orderer) know the order of entries and who speaks
//! for them. What an operation means they leave to a [`Volume`]. The orderer needs only a [`Roll`].

use std::fmt::Debug;
use std::hash::Hash;

use crate::scheme::{DeviceScheme, Scheme};

/// Who may write: membership after a prefix of the log.
pub trait Roll<S: Scheme>: Clone {
    /// The device's admission is in effect, and no removal.
    fn active(&self, device: S::Device) -> bool;
    /// Size of the log at which its admission came into effect. 0 for members by the genesis policy.
    fn admitted(&self, device: S::Device) -> u64;
    /// Why no orderer may put an entry with this content into the log, whatever the state of files: limits, encoding.
    fn malformed(&self, entry: &S::Entry) -> Option<&'static str>;
    /// What must come with an entry before it can be judged, and did not. The log is not at fault, but who sent it. The
    /// answer depends on the entry alone, because it is asked before the entries before this one are taken.
    fn lacks(&self, _: &S::Entry) -> Option<&'static str> {
        None
    }
    /// Whether its signature is verified before any later entry is judged: it says who is a member, or what others need
    /// not replay any more.
    fn is_weighty(&self, _: &S::Entry) -> bool {
        false
    }
    /// Adds an entry of right form at a position.
    fn extend(&mut self, at: u64, entry: &S::Entry);
}

/// State of the volume after a prefix of the log, as one device sees it.
pub trait Volume<S: DeviceScheme>: Roll<S> {
    /// What a program asks for.
    type Call: Clone + Debug + Hash;
    /// What it is told.
    type Answer: Clone + Debug + Hash;
    /// Entries that an answer rests on.
    type Basis: Basis<S::Device>;
    /// Blocks and bodies that must be fetched first.
    type Missing: Clone + Debug;
    /// A block that must be stored before an entry is sent, because the entry names it.
    type Block: Clone + Debug;

    /// Entries of `device` before this position count by an administrator's decision.
    fn accepted(&self, device: S::Device) -> u64;
    /// What a call comes to at the end of the log.
    fn build(&self, call: &Self::Call, attempt: &Attempt<S::Device>) -> Build<S, Self>;
    /// The answer to a call that had no effect so far and whose program is gone. None: it goes on without its program.
    fn forsaken(&self, _: &Self::Call) -> Option<Self::Answer> {
        None
    }
    /// What became of an operation of this device's entry at a position. Asked directly after [`Roll::extend`], and
    /// again when what was missing has been fetched.
    fn outcome(&self, at: u64, op: usize, call: &Self::Call) -> Outcome<S, Self>;
    /// The final answer for an operation that takes effect late: the one with this number in the entry at this position.
    /// Called when it has had its effect, or when another decision came between. `answer`: that of [`Outcome::Late`].
    fn settled(&self, _at: u64, _op: usize, answer: Self::Answer) -> Self::Answer {
        answer
    }
    /// What this device has taken from the others and does not use. `wanted`: the operations that its calls come to. Asked
    /// when all of them are known.
    fn leftover(
        &self,
        _device: S::Device,
        _wanted: &[S::Op],
    ) -> Leftover<Self::Missing, Self::Call> {
        Leftover::Nothing
    }
    /// Whether an operation says that others change what this device changes.
    fn contends(&self, _: &S::Op) -> bool {
        false
    }
    /// Whether an entry with these operations has room for one more.
    fn has_room(&self, ops: &[S::Op], next: &S::Op) -> bool;
    /// What a program is told when nobody speaks in time for these entries, which its answer rests on.
    fn silent(unattested: &Self::Basis) -> Self::Answer;
}

/// Entries without effect after which a call takes the lock of its file, so that others let it go first. With more, the
/// devices of a file that is changed often try again and again before there is a queue (decision 0061). The explorer's
/// small volume has the same.
pub const PATIENCE: u8 = 1;

/// Who calls, and how often the call has failed.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<D> {
    /// The calling device.
    pub device: D,
    /// Entries that were sent for the call and had no effect.
    pub failed: u8,
    /// Prefix in which every entry is attested or accepted: so far a fold may go.
    pub foldable: u64,
    /// Prefix that the device has known for the time to live of locks. A lock whose holder took or renewed it there,
    /// and not since, may be taken over. The operation is guarded by that position.
    pub lapsed: u64,
}

/// What a call comes to.
pub enum Build<S: DeviceScheme, V: Volume<S>> {
    /// It changes nothing: the answer, and what it rests on.
    Says(V::Answer, V::Basis),
    /// It needs an operation. The operation names these blocks, which are stored first.
    Op(S::Op, Vec<V::Block>),
    /// Another device has the lock, and took or renewed it last at this position. The call waits until the lock is
    /// given up, or until [`Attempt::lapsed`] is beyond the position.
    Blocked(u64),
    /// Fetch this first.
    Missing(V::Missing),
}

/// What a device has taken and does not use.
pub enum Leftover<M, C> {
    /// Nothing.
    Nothing,
    /// This call gives it back. No program makes it.
    Call(C),
    /// Fetch this first.
    Missing(M),
}

/// What became of an operation.
pub enum Outcome<S: DeviceScheme, V: Volume<S>> {
    /// It had effect, and the call is done.
    Done(V::Answer, V::Basis),
    /// It has effect when the device's next entry attests it.
    Late(V::Answer),
    /// It had no effect, or the call needs another operation.
    Again,
    /// Fetch this first.
    Missing(V::Missing),
}

/// Positions of entries, each with its author.
pub trait Basis<D>: Clone + Debug + Hash + Default {
    /// Those for which `keep` says so.
    #[must_use]
    fn filter(&self, keep: impl FnMut(u64, D) -> bool) -> Self;
    /// Whether it has none.
    fn is_empty(&self) -> bool;
}
