//! How one state of a volume differs from another one of the same volume. [`trust::change`] defines what counts as
//! changed, here and in the dry run of a publication.
//!
//! | module | compares |
//! |---|---|
//! | `published` | two versions, at the cost of the difference: equal directories have equal handles; `lead`: what is fetched ahead; `pair`: two directories of one path |
//! | `shared` | a shared volume after two prefixes of its log: name by name, because names have no handles there |

mod lead;
mod pair;
mod published;
mod shared;

use trust::change::Change;

use crate::error::Error;
use crate::tree::{Of, Tree};

/// Reports how `new` differs from `old`: directory by directory, names in order. Entries of a new directory are
/// reported too, those of a removed one are not. An opaque directory is compared as a whole.
///
/// # Errors
/// [`Error`] when a directory of either state cannot be read, or the two are of different volumes; those of `tell`.
pub async fn diff<E: From<Error>>(
    old: &Tree<'_>,
    new: &Tree<'_>,
    tell: impl FnMut(Change) -> Result<(), E>,
) -> Result<(), E> {
    match (&old.of, &new.of) {
        _ if old.volume() != new.volume() => Err(Error::OtherVolume.into()),
        (
            Of::Published { snapshot, .. },
            Of::Published {
                snapshot: after, ..
            },
        ) => published::difference(snapshot, after, || new.how(), tell).await,
        (Of::Shared { volume, size }, Of::Shared { size: after, .. }) => {
            shared::difference(volume, [*size, *after], tell).await
        }
        _ => Err(Error::OtherVolume.into()),
    }
}
