// SPDX-License-Identifier: Apache-2.0

//! The crate's tests, in one program: what they link is large.

mod errors;
mod examples;
mod job;
mod logs;
mod memory;
mod planning;
mod rounds;
mod streams;

#[test]
fn the_library_has_the_version_of_the_crate() {
    assert_eq!(waybill::version(), env!("CARGO_PKG_VERSION"));
    assert_eq!(waybill::abi_version(), (0, 1));
}
