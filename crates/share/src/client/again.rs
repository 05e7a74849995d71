//! What a device that was killed would do again: whether the server has the blocks of it.
//!
//! Blocks travel with their call (decision 0113), so a kill may lose them and leave the call in the journal. Before the
//! device resumes, all blocks that such calls name are touched. What the server lacks comes from what this device keeps of
//! its own ([`super::own`]). A call whose content is not whole then is taken back: nobody was told that it is done.

use std::sync::Arc;
use std::time::Duration;

use store::StoreError;
use tokio::time::sleep;
use trust::array::{ArrayRoot, Child, Extent, Node};
use trust::{ArrayNode, Handle, Hasher, Record};

use super::connection::Line;
use super::own::Own;
use crate::outbox::{TRIES, Unstored};

/// Nodes of a tree that are looked at together. A tree is walked depth first, so memory is bounded.
const NODES: usize = 16;

/// Blocks that the server refuses are stored again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// Where blocks are.
pub(super) struct Blocks {
    pub(super) line: Arc<dyn Line>,
    pub(super) own: Option<Arc<Own>>,
    pub(super) hasher: Hasher,
}

impl Blocks {
    /// Those of these trees that are not whole at the server, and cannot be made so.
    pub(super) async fn lacking(&self, roots: &[ArrayRoot]) -> Result<Vec<ArrayRoot>, StoreError> {
        let mut lacking = Vec::new();
        for root in roots {
            if !self.is_whole(root).await? {
                lacking.push(*root);
            }
        }
        Ok(lacking)
    }

    async fn is_whole(&self, root: &ArrayRoot) -> Result<bool, StoreError> {
        let mut left = vec![root.top()];
        while !left.is_empty() {
            let some = left.split_off(left.len().saturating_sub(NODES));
            let (mut handles, mut nodes) = (Vec::<Handle>::new(), Vec::new());
            for child in some {
                match child {
                    Child::Node { handle, .. } => nodes.push(handle),
                    Child::Extent(Extent::Data { handle, .. }) => handles.push(handle.any()),
                    Child::Extent(Extent::Hole { .. }) => {}
                }
            }
            handles.extend(nodes.iter().map(Handle::any));
            if !self.touched(&handles).await? {
                return Ok(false);
            }
            for handle in nodes {
                match self.node(handle).await? {
                    Some(node) => left.extend(node.children()),
                    None => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    /// Touches blocks, and stores those that only this device has.
    async fn touched(&self, handles: &[Handle]) -> Result<bool, StoreError> {
        if handles.is_empty() {
            return Ok(true);
        }
        let sink = self.line.sink();
        let lacks = sink.touch(handles).await?;
        let own = match &self.own {
            Some(own) if !lacks.is_empty() => own.get(&lacks).await,
            _ => Vec::new(),
        };
        if own.len() < lacks.len() {
            return Ok(false);
        }
        self.stored(&own).await
    }

    /// Whether the server takes these blocks. A server that has no room, or refuses them again and again, holds no device
    /// up: its call is taken back.
    async fn stored(&self, records: &[Record]) -> Result<bool, StoreError> {
        let mut refusals = 0;
        while !records.is_empty() {
            match self.line.put(records).await {
                Ok(()) => break,
                Err((Unstored::Now, error)) => return Err(error),
                Err((Unstored::Full, _)) => return Ok(false),
                Err((Unstored::Refused, _)) => refusals += 1,
            }
            if refusals == TRIES {
                return Ok(false);
            }
            sleep(AGAIN).await;
        }
        Ok(true)
    }

    /// None: nobody gives it, or what is given is not it.
    async fn node(&self, handle: Handle<ArrayNode>) -> Result<Option<Node>, StoreError> {
        let want = [handle.any()];
        let mut found = match &self.own {
            Some(own) => own.get(&want).await,
            None => Vec::new(),
        };
        if found.is_empty() {
            found = self.line.store().get_many(&want, 0).await?;
        }
        let plain = found.first().and_then(|record| record.frame.unpack().ok());
        let block = plain.and_then(|plain| self.hasher.check(&handle, plain).ok());
        Ok(block.and_then(|block| Node::decode(&block).ok()))
    }
}
