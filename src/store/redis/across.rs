//! All or nothing across servers.
//!
//! The charges of a request are put together by the server that has their keys. Where that is one, as it is when a tenant
//! names the hash tag, one call decides them. Where there are several, each decides its *part*, all at the same time, and
//! then:
//!
//! - **All parts passed**: so does the request. That took one round trip, however many parts.
//! - **A part refused**, or all quotas of the request are over: so is the request. What the other parts have taken is
//!   given back, and the answer, which does not wait for that, reads as if it had not been taken.
//! - **A part failed**: the failure mode answers for the request, and what the other parts have taken is given back. What
//!   failed for a timeout may have been taken, and stays so.
//!
//! What is given back is what `algorithm::decide` would not have spent: fitting takes. What counts always (`mode: record`),
//! and what a charge that did not fit has used up, stays spent.
//!
//! **Between taking and giving back** others may be refused who would have passed on one server; nobody is granted more
//! than there is. That lasts a round trip. If giving back fails, which is counted, it lasts until the limit has refilled
//! by itself: a window's end, or a bucket's time for so many hits. It may also come late, when a server that hung wakes:
//! a give-back says what it was taken from, and what is over by then is not given (`algorithm::giving_back`).
//!
//! **Quotas** (of which one that fits is enough) are judged over all parts; in a part that does not hold all of them they
//! take what fits and refuse nothing.
//!
//! **Refunds** must not happen when the request is refused, and cannot be taken back once somebody else has spent them. So
//! they wait until all that takes has passed, which makes it two round trips. A charge that comes after a refund on its own
//! key waits with it, since it may need it; where such charges are on several servers these are asked one after the other,
//! and what one has given is owed again if a later one refuses.
//!
//! **A client that goes away** leaves its request behind, which is carried to its end even so. Only that, and giving back,
//! is a task of its own; else the parts are waited for where the request is.

mod request;
mod undo;

use std::sync::Arc;

use super::{
    Shared,
    deadline::Deadline,
    parts,
    route::{Grain, Undecided},
};
use crate::{
    limit::{Charge, Decision},
    store::StoreError,
};
use request::{Carried, Request};

/// Decides the charges of one request.
pub(super) async fn spend(
    shared: &Arc<Shared>,
    charges: &[Charge],
    deadline: Deadline,
) -> Result<Decision, StoreError> {
    let mut by = Grain::Node;
    if let Some(part) = parts::the_one(shared, charges)? {
        let seat = shared.seats.here();
        match part.deployment.spend(&part.node, seat, charges, part.grain, deadline).await {
            Ok(decision) => return Ok(decision),
            Err(Undecided::Failed(error)) => return Err(error),
            Err(Undecided::Split(grain)) => by = grain,
        }
    }
    Carried::new(Request::new(shared, charges.to_vec(), deadline).decide(by)).await
}
