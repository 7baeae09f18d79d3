mod behind;
mod claims;
mod group;
#[cfg(feature = "plant")]
mod planted;
mod random_faults;
mod steady;
mod views;
mod wire;
