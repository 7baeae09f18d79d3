mod behind;
mod claims;
mod group;
#[cfg(feature = "bugs")]
mod injected;
mod random_faults;
mod steady;
mod views;
mod wire;
