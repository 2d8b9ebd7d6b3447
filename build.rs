//! Compiles `proto/` with `protox`, a protobuf compiler in Rust, so that no `protoc` has to be installed.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;

    // Server reflection hands this set to grpcurl and the like.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("rls.descriptors"), descriptors.encode_to_vec())?;

    // Received keys and values stay slices of the message that they came in: no copy for each.
    tonic_prost_build::configure().bytes(".envoy.extensions.common.ratelimit.v3").compile_fds(descriptors)?;
    discovery(&out.join("discovery"))
}

/// Rules from a management server. Apart from the service's messages, since another layer uses them (`rules::xds`), and
/// since server reflection has no business with what we ask others.
fn discovery(out: &Path) -> Result<(), Box<dyn Error>> {
    let files =
        ["envoy/service/discovery/v3/discovery.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];
    fs::create_dir_all(out)?;
    // The server's half is what the tests' management server is made of.
    tonic_prost_build::configure()
        .out_dir(out)
        .include_file("mod.rs")
        .compile_fds(protox::compile(files, ["proto"])?)?;
    Ok(())
}
