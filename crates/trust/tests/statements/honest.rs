//! What must work: publish, read, renew, rotate.

use trust::Reject;
use trust::head::Head;

use crate::world::*;

#[test]
fn a_first_head_is_believed_and_adopted() {
    let mut world = World::new();
    let head = world.publish(1);
    let head = Head::decode(&head.encode().unwrap()).unwrap();
    let offer = judge(&world.floor(), &head).unwrap();
    assert!(offer.is_new);
    assert!(!offer.stale);
    assert_eq!(offer.valid_until, NOW + WEEK);
    assert_eq!(offer.record.log.size, 1);
    assert_eq!(offer.log_after.size, 2);
    let floor = world.floor().adopt(&offer).unwrap();
    assert_eq!(floor.adopted().unwrap().version, 1);
    assert!(!judge(&floor, &head).unwrap().is_new);
    let next = world.publish(2);
    let floor = adopted(&floor, &[&next]);
    assert_eq!(
        judge(&floor, &head).unwrap_err(),
        Reject::Rollback {
            offered: 1,
            floor: 2
        }
    );
}
