mod bypass;
mod groups;
#[cfg(feature = "plant")]
mod planted;
mod random_faults;
mod wire;
