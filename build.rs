//! Compiles `proto/` with `protox`, a protobuf compiler in Rust, so that no `protoc` has to be installed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;

    // Server reflection hands this set to grpcurl and the like.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("rls.descriptors"), descriptors.encode_to_vec())?;

    // Received keys and values stay slices of the message that they came in: no copy for each.
    tonic_prost_build::configure().bytes(".envoy.extensions.common.ratelimit.v3").compile_fds(descriptors)?;
    Ok(())
}
