//! Why a call over a link failed, or the link ended.

use std::sync::Arc;

use store::StoreError;
use trust::Reject;

use crate::refusal::{ErrorCode, Refusal};
use crate::shared::{FULL, NO_VOLUME, QUOTA};

/// Why a call failed, or the connection ended. Each caller of one connection is given the same error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The server was not reached, broke off, or takes too long.
    #[error("{place} does not answer: {cause}")]
    Unavailable {
        /// Where the server is.
        place: Arc<str>,
        /// What happened.
        cause: String,
    },
    /// Another server is there: it does not have the orderer's key.
    #[error("{place} is not the server of this volume: it has another key")]
    OtherServer {
        /// Where the server is.
        place: Arc<str>,
    },
    /// The server sent something that no honest server sends.
    #[error("{place} gave an invalid answer: {why}")]
    BadAnswer {
        /// Where the server is.
        place: Arc<str>,
        /// Which rule it broke.
        why: Reject,
    },
    /// The server is of a later bulla.
    #[error("{place} needs a newer bulla: {why}")]
    Unsupported {
        /// Where the server is.
        place: Arc<str>,
        /// What this build does not know.
        why: String,
    },
    /// The server refused a request, or ended the connection with a reason. The text is untrusted.
    #[error("{place} refuses: {}", refusal.text)]
    Refused {
        /// Where the server is.
        place: Arc<str>,
        /// Code and text.
        refusal: Refusal,
    },
}

impl LinkError {
    /// The code of a refusal.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            LinkError::Refused { refusal, .. } => Some(refusal.code),
            _ => None,
        }
    }

    pub(super) fn bad(place: &Arc<str>, why: Reject) -> LinkError {
        let place = Arc::clone(place);
        match why {
            Reject::Unsupported { why, .. } => LinkError::Unsupported { place, why },
            why => LinkError::BadAnswer { place, why },
        }
    }

    pub(super) fn refused(place: &Arc<str>, refusal: Refusal) -> LinkError {
        let place = Arc::clone(place);
        match refusal.code {
            ErrorCode::UNSUPPORTED => LinkError::Unsupported {
                place,
                why: format!("the server says: {}", refusal.text),
            },
            _ => LinkError::Refused { place, refusal },
        }
    }

    pub(super) fn unavailable(place: &Arc<str>, cause: impl Into<String>) -> LinkError {
        LinkError::Unavailable {
            place: Arc::clone(place),
            cause: cause.into(),
        }
    }
}

impl From<LinkError> for StoreError {
    fn from(error: LinkError) -> StoreError {
        let cause = match &error {
            LinkError::Unavailable { cause, .. } => cause.clone(),
            LinkError::Refused { refusal, .. } => format!("the server says: {}", refusal.text),
            LinkError::OtherServer { .. } => "it has another key".to_owned(),
            other => other.to_string(),
        };
        match error {
            LinkError::BadAnswer { place, why } => StoreError::BadAnswer {
                place: place.to_string(),
                why,
            },
            LinkError::Unsupported { place, why } => StoreError::Unsupported {
                place: place.to_string(),
                why,
            },
            LinkError::Refused { place, refusal } if refusal.code == NO_VOLUME => {
                StoreError::NoVolume {
                    place: place.to_string(),
                }
            }
            LinkError::Refused { place, refusal } if matches!(refusal.code, FULL | QUOTA) => {
                StoreError::Full {
                    place: place.to_string(),
                    cause,
                }
            }
            LinkError::Unavailable { place, .. }
            | LinkError::OtherServer { place }
            | LinkError::Refused { place, .. } => StoreError::Unavailable {
                place: place.to_string(),
                cause,
            },
        }
    }
}
