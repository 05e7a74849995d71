//! What the server says of the room that this device has.

use std::time::Instant;

use tokio::time::timeout_at;
use wire::shared::Usage;

use super::checkpoint::lost;
use super::{Client, ClientError};

impl Client {
    /// What this device has used at the server, and what is left: for `df`, and to warn people. Nothing of it is proved, so
    /// nothing is refused because of it: whether there is room, the server says when blocks are put. Only the process
    /// with the engine may ask.
    ///
    /// # Errors
    /// [`ClientError::EngineElsewhere`]; [`ClientError::Deadline`] when the server does not answer in time.
    pub async fn usage(&self, deadline: Instant) -> Result<Usage, ClientError> {
        let line = self.line(deadline).await?;
        let late = |_| ClientError::Deadline {
            connection: self.view().connection,
        };
        let answer = timeout_at(deadline.into(), line.usage());
        answer.await.map_err(late)?.map_err(lost)
    }
}
